"""TensorFlow Datasets: read in both directions, without TensorFlow."""

import shutil
import sys

import pytest

from tests.support.corpora import PAIRS, read
from transformer_jax.config import DataConfig
from transformer_jax.data.corpora import open_corpus
from transformer_jax.errors import BadInput


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    """A small prepared data set."""
    import tensorflow_datasets as tfds

    class TinyParallel(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = tmp_path_factory.mktemp("code")  # TFDS looks there for documentation

        def _info(self):
            features = tfds.features.Translation(languages=("de", "en"))
            return tfds.core.DatasetInfo(
                builder=self, features=features, disable_shuffling=True, supervised_keys=("de", "en")
            )

        def _split_generators(self, download_manager):
            return {"train": self._generate_examples(PAIRS), "validation": self._generate_examples(PAIRS[:7])}

        def _generate_examples(self, pairs):
            for index, (source, target) in enumerate(pairs):
                yield index, {"en": source, "de": target}

    directory = tmp_path_factory.mktemp("tfds")
    TinyParallel(data_dir=directory, file_format="array_record").download_and_prepare()
    return directory


@pytest.mark.parametrize("reverse", [False, True])
def test_both_directions(tfds_dir, reverse):
    source, target = ("de", "en") if reverse else ("en", "de")
    config = DataConfig(
        corpus="tiny_parallel", tfds_data_dir=str(tfds_dir), source_language=source, target_language=target
    )
    expected = [(target, source) for source, target in PAIRS] if reverse else PAIRS
    assert open_corpus(config).splits == ("train", "valid")
    assert read(config) == expected
    assert read(config, "valid") == expected[:7]


def test_the_default_direction_is_the_data_sets(tfds_dir):
    config = DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tfds_dir))
    assert read(config, "valid")[0] == (PAIRS[0][1], PAIRS[0][0])
    only_source = DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tfds_dir), source_language="en")
    assert read(only_source, "valid")[0] == PAIRS[0]


def test_tensorflow_is_not_imported(tfds_dir):
    read(DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tfds_dir)))
    assert "tensorflow" not in sys.modules


def test_another_format_and_a_damaged_file_are_refused(tfds_dir, tmp_path):
    shutil.copytree(tfds_dir, tmp_path / "copy")
    corpus = open_corpus(DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tmp_path / "copy")))
    (path,) = (tmp_path / "copy").rglob("*train.array_record*")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInput, match="train cannot be read"):
        list(corpus.chunks("train", 17))
    (info,) = (tmp_path / "copy").rglob("dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(BadInput, match="file_format"):
        read(DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tmp_path / "copy")))


def test_a_data_set_without_training_text_is_refused(tfds_dir, tmp_path):
    shutil.copytree(tfds_dir, tmp_path / "copy")
    (info,) = (tmp_path / "copy").rglob("dataset_info.json")
    info.write_text(info.read_text().replace('"train"', '"test"'))
    with pytest.raises(BadInput, match="has no split train; there are: test, validation"):
        open_corpus(DataConfig(corpus="tiny_parallel", tfds_data_dir=str(tmp_path / "copy")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corpus": "wmt14_translate/de-en"}, "tfds build wmt14_translate/de-en"),
        ({"corpus": "wmt14_translate"}, "did you mean wmt14_translate/"),
        ({"corpus": "revers"}, "did you mean reverse?"),
        ({"corpus": "no such name!"}, "TFDS has no such data set"),
        ({"corpus": "tiny_parallel", "source_language": "fr"}, "there are: de, en"),
        ({"corpus": "mnist"}, "which text is translated into which"),
    ],
)
def test_bad_input(tfds_dir, options, message):
    with pytest.raises(BadInput, match=message):
        open_corpus(DataConfig(tfds_data_dir=str(tfds_dir), **options))
