"""translate on a terminal: what is shown before the prompt, and warned of after it."""

import io

from transformer_jax import cli
from transformer_jax.commands.training_words import training_sources
from transformer_jax.processes.compilation import CompileWatch

TYPED = b"the dog sees a tree\n\nThe zebra the zebra near near near near near\n"


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


class Keyboard(io.BytesIO):
    """Notes the number of programs that had been compiled whenever it is read."""

    def __init__(self):
        super().__init__(TYPED)
        self.watch, self.compiled = CompileWatch(), []

    def read1(self, size=-1):
        self.compiled.append(self.watch.programs)
        return self.readline()


def test_sentences_that_are_typed(folder, model, loaded, capsys, monkeypatch):
    keyboard = Keyboard()
    monkeypatch.setattr("sys.stdin", Terminal(keyboard))
    monkeypatch.setattr(model._translator, "least_room", 0)  # is restored: other tests use this model
    assert cli.main(["translate", f"--workdir={folder}", "--beam=3"]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n")[:-1] == model.translate(TYPED.decode().split("\n")[:-1], beam=3)
    assert keyboard.compiled[0] == keyboard.compiled[-1] > 0
    lines = err.split("\n")
    start = lines.index("The model was trained on sentences in this form:")
    assert all(example.strip() in set(training_sources(folder)) for example in lines[start + 1 : start + 3])
    assert lines[start + 3] == "Type a sentence and press Enter; Ctrl-D ends."
    unseen = [line.lstrip("> ") for line in lines if "never seen" in line]
    assert unseen == ["warning: never seen in training: The (but the was), zebra"]
