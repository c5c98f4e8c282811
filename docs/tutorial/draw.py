"""Draws the tutorial's diagrams, in English and in Korean: python docs/tutorial/draw.py

A diagram is a function that returns an SVG. Its colours follow the reader's light or dark scheme.
"""

import html
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

FOLDERS = {
    "en": Path(__file__).parent / "pictures",
    "ko": Path(__file__).parents[1] / "ko/tutorial/pictures",
}
BOX, STEP = 34, 66  # the height of a box, and from one box to the next
STYLE = """
    text { font: 14px system-ui, "Noto Sans", "Noto Sans KR", "Apple SD Gothic Neo", "NanumGothic", sans-serif; }
    text { fill: #1f2933; text-anchor: middle; dominant-baseline: central; }
    .paper { fill: #ffffff; }
    .shape { font-size: 12px; fill: #52606d; font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
    .start { text-anchor: start; }
    .end { text-anchor: end; }
    .note { font-size: 13px; fill: #52606d; }
    .frame { fill: #f3f5f8; stroke: #9aa5b1; }
    .box { stroke: #1f2933; }
    .attention { fill: #fbe0c3; }
    .feed { fill: #cfe6f5; }
    .norm { fill: #f4f1c6; }
    .embed { fill: #f7d9dc; }
    .plain { fill: #e3e0f3; }
    .small { font-size: 12px; }
    .big { font-size: 17px; }
    .bar { fill: #4a7fb5; }
    .seen { fill: #4a7fb5; }
    .hidden { fill: #e4e7eb; }
    .faint { opacity: 0.35; }
    .best { stroke: #b23a2e; stroke-width: 2.5; }
    .line { fill: none; stroke: #1f2933; stroke-width: 1.5; }
    .head { fill: #1f2933; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e7eb; }
      .paper { fill: #1e2129; }
      .shape, .note { fill: #a8b2bd; }
      .frame { fill: #282c37; stroke: #7b8794; }
      .box, .line { stroke: #cbd2d9; }
      .head { fill: #cbd2d9; }
      .attention { fill: #6b4522; }
      .feed { fill: #24506b; }
      .norm { fill: #57531b; }
      .embed { fill: #6b2f36; }
      .plain { fill: #433d70; }
      .hidden { fill: #3a404d; }
      .bar, .seen { fill: #6ea3d8; }
      .best { stroke: #ff8a7a; }
    }
"""


class Drawing:
    """Shapes on a page whose y axis points up, as the layers of the paper's figures do."""

    def __init__(self, width: int, height: int, title: str):
        self._size, self._title, self._shapes = (width, height), title, list[str]()

    def box(self, x: float, y: float, width: float, text: str, kind: str, height: float = BOX) -> None:
        """A box with its name; (x, y) is the middle of its lower edge."""
        self._rectangle(x, y, width, height, f"box {kind}", radius=6)
        self.text(x, y + height / 2, text)

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        self._rectangle(x, y, width, height, "frame", radius=12)

    def cell(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A rectangle without a name; (x, y) is the middle of its lower edge."""
        self._rectangle(x, y, width, height, kind, radius=2)

    def _rectangle(self, x: float, y: float, width: float, height: float, kind: str, radius: float) -> None:
        top = self._size[1] - y - height
        place = f'x="{x - width / 2:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
        self._shapes.append(f'<rect class="{kind}" {place} rx="{radius:g}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """A text; in `W^Q` the letter behind ^ is raised."""
        raised = r'<tspan dy="-5" font-size="9">\1</tspan><tspan dy="5">\2</tspan>'
        shown = re.sub(r"\^(\w)([^^]*)", raised, html.escape(text))
        self._shapes.append(f'<text class="{kind}" x="{x:g}" y="{self._size[1] - y:g}">{shown}</text>')

    def arrow(self, *points: tuple[float, float], shape: str = "", side: int = 1) -> None:
        """A line through points to an arrow head. The shape of what it carries stands beside its first part.

        `side`: 1 for the right of the line, -1 for the left.
        """
        upright = [(x, self._size[1] - y) for x, y in points]
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in upright)
        self._shapes.append(f'<path class="line" d="{path}" marker-end="url(#head)"/>')
        if shape:
            (x, y), (_, end) = points[0], points[1]
            self.text(x + 8 * side, (y + end) / 2, shape, "shape start" if side > 0 else "shape end")

    def line(
        self, start: tuple[float, float], end: tuple[float, float], kind: str = "", width: float | None = None
    ) -> None:
        """A line without an arrow head."""
        (x, y), (to_x, to_y) = start, end
        height = self._size[1]
        style = "" if width is None else f' style="stroke-width: {width:.1f}"'
        path = f"M{x:g} {height - y:g} L{to_x:g} {height - to_y:g}"
        self._shapes.append(f'<path class="line {kind}" d="{path}"{style}/>')

    def circle(self, x: float, y: float, radius: float) -> None:
        self._shapes.append(f'<circle class="line" cx="{x:g}" cy="{self._size[1] - y:g}" r="{radius:g}"/>')

    def plus(self, x: float, y: float) -> None:
        """The circle of a sum; (x, y) is its middle."""
        self._shapes.append(f'<circle class="line paper" cx="{x:g}" cy="{self._size[1] - y:g}" r="10"/>')
        self.text(x, y, "+")

    def svg(self) -> str:
        width, height = self._size
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img">',
                f"  <title>{html.escape(self._title)}</title>",
                f"  <style>{STYLE}  </style>",
                '  <defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                'orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
                f'  <rect class="paper" width="{width}" height="{height}"/>',
                *(f"  {shape}" for shape in self._shapes),
                "</svg>\n",
            ]
        )


# Figure 1 of the paper, with the shape of every arrow.

FIGURE_1 = {
    "en": {
        "title": "The Transformer, with the shape of what every arrow carries",
        "inputs": "source tokens",
        "outputs": "target tokens, shifted right",
        "embedding": "embedding",
        "positions": "positional encoding",
        "self": "self-attention",
        "masked": "masked self-attention",
        "cross": "encoder-decoder attention",
        "norm": "add & norm",
        "feed": "feed-forward (2048)",
        "linear": "linear",
        "softmax": "softmax",
        "result": "probabilities of the next token",
        "encoder": "encoder",
        "decoder": "decoder",
        "memory": "keys and values of every decoder layer",
    },
    "ko": {
        "title": "트랜스포머의 구조와 화살표마다 지나가는 배열의 모양",
        "inputs": "원문 토큰",
        "outputs": "한 칸 밀린 번역문 토큰",
        "embedding": "임베딩",
        "positions": "위치 인코딩",
        "self": "셀프 어텐션",
        "masked": "셀프 어텐션(마스크)",
        "cross": "인코더-디코더 어텐션",
        "norm": "더하기 & 정규화",
        "feed": "피드포워드 (2048)",
        "linear": "선형 변환",
        "softmax": "소프트맥스",
        "result": "다음 토큰의 확률",
        "encoder": "인코더",
        "decoder": "디코더",
        "memory": "모든 디코더 층의 키와 값",
    },
}


def figure_1(names: dict[str, str]) -> str:
    drawing = Drawing(760, 810, names["title"])
    source = ["self", "norm", "feed", "norm"]
    target = ["masked", "norm", "cross", "norm", "feed", "norm"]
    left, right, width = 190, 540, 210
    encoder_end = _stack(drawing, left, width, source, names, "inputs", "S", "encoder")
    decoder_end = _stack(drawing, right, width, target, names, "outputs", "T", "decoder")
    # The last encoder layer feeds the attention of every decoder layer.
    cross = _height_of(target.index("cross")) + BOX / 2
    drawing.arrow(
        (left, encoder_end), (left, encoder_end + 44), (365, encoder_end + 44), (365, cross), (right - width / 2, cross)
    )
    drawing.text(left + 8, encoder_end + 22, "[B, S, 512]", "shape start")
    drawing.text(left, encoder_end + 62, names["memory"], "note")
    y = decoder_end
    for name, shape in (("linear", "[B, T, 512]"), ("softmax", "[B, T, 37000]")):
        drawing.arrow((right, y), (right, y + STEP - BOX), shape=shape, side=-1)
        drawing.box(right, y + STEP - BOX, width, names[name], "plain")
        y += STEP
    drawing.arrow((right, y), (right, y + STEP - BOX), shape="[B, T, 37000]", side=-1)
    drawing.text(right, y + STEP - BOX + 14, names["result"])
    return drawing.svg()


def _height_of(number: int) -> float:
    """The lower edge of a box in a layer."""
    return 230 + number * STEP


def _stack(
    drawing: Drawing,
    x: float,
    width: float,
    boxes: Sequence[str],
    names: dict[str, str],
    tokens: str,
    axis: str,
    stack: str,
) -> float:
    """An encoder or a decoder from its tokens on; returns the height at which it ends."""
    wide, shape = width + 70, f"[B, {axis}, 512]"
    top = _height_of(len(boxes) - 1) + BOX
    drawing.text(x, 20, names[tokens])
    side = -1 if stack == "encoder" else 1  # where the positions and the residual connections are drawn
    drawing.arrow((x, 32), (x, 64), shape=f"[B, {axis}]", side=-side)
    drawing.box(x, 64, width, names["embedding"], "embed")
    drawing.arrow((x, 64 + BOX), (x, 130), shape=shape, side=-side)
    drawing.plus(x, 141)
    drawing.text(x + side * 124, 118, names["positions"], "note")
    drawing.arrow((x + side * 70, 141), (x + side * 12, 141))
    drawing.text(x + side * 78, 141, f"[{axis}, 512]", "shape " + ("end" if side < 0 else "start"))
    drawing.frame(x, _height_of(0) - 34, wide, top - _height_of(0) + 58)
    drawing.text(x + side * (wide / 2 + 22), (top + _height_of(0)) / 2, "× 6")
    drawing.text(x + side * (wide / 2 - 8), top + 12, names[stack], "note " + ("start" if side < 0 else "end"))
    residual = 151.0
    for number, name in enumerate(boxes):
        y = _height_of(number)
        start = residual if number == 0 else _height_of(number - 1) + BOX
        drawing.arrow((x, start), (x, y), shape=shape if number else "", side=-side)
        kind = {"norm": "norm", "feed": "feed"}.get(name, "attention")
        drawing.box(x, y, width, names[name], kind)
        if name == "norm":
            # The residual connection goes around the box below.
            below = _height_of(number - 1) - 14
            edge = x + side * (width / 2 + 18)
            drawing.arrow((x, below), (edge, below), (edge, y + BOX / 2), (x + side * width / 2, y + BOX / 2))
    drawing.text(x - 8 * side, 174, shape, "shape " + ("start" if side < 0 else "end"))
    return top


# Page 0: a recurrent network and self-attention, side by side.

RECURRENCE = {
    "en": {
        "title": "A recurrent network reads step by step; with self-attention every word sees every word at once",
        "rnn": "a recurrent network: six steps, one after another",
        "attention": "self-attention: one step",
        "context": "one vector for the whole sentence",
        "words": "the cat that we saw sleeps",
    },
    "ko": {
        "title": "순환 신경망은 한 단어씩 차례로 읽고, 셀프 어텐션은 모든 단어가 서로를 한꺼번에 본다",
        "rnn": "순환 신경망: 여섯 스텝을 차례로",
        "attention": "셀프 어텐션: 한 스텝",
        "context": "문장 전체를 담은 벡터 하나",
        "words": "우리가 어제 본 고양이가 잠을 잔다",
    },
}


def recurrence(names: dict[str, str]) -> str:
    drawing = Drawing(760, 400, names["title"])
    words, step = names["words"].split(), 100
    places = [70 + number * step for number in range(len(words))]
    drawing.text(70 - 35, 380, names["rnn"], "start")
    for x, word in zip(places, words, strict=True):
        drawing.text(x, 250, word)
        drawing.arrow((x, 262), (x, 300))
        drawing.box(x, 300, 62, "h", "feed")
    for x in places[1:]:
        drawing.arrow((x - step + 31, 317), (x - 31, 317))
    drawing.arrow((places[-1] + 31, 317), (690, 317))
    drawing.text(750, 348, names["context"], "note end")
    drawing.text(70 - 35, 200, names["attention"], "start")
    for x, word in zip(places, words, strict=True):
        drawing.text(x, 20, word)
        drawing.arrow((x, 32), (x, 50))
        drawing.box(x, 50, 62, "x", "feed")
        drawing.box(x, 140, 62, "y", "attention")
        for other in places:
            drawing.line((other, 50 + BOX), (x, 140), "faint" if x != places[-1] else "")
    return drawing.svg()


# Page 0: a decoder state asks the states of the encoder.

ASKING = {
    "en": {
        "title": "A decoder state is compared with all encoder states; their weighted sum is the context vector",
        "source": "le chat que nous voyons dort",
        "target": ("see", "sleeps"),
        "encoder": "the encoder's states: keys and values",
        "query": "query",
        "context": "weighted sum",
        "vector": "context vector",
        "decoder": "the decoder's states",
        "note": "the wider a line, the larger the weight (numbers of an example)",
    },
    "ko": {
        "title": "디코더의 상태 하나를 인코더의 모든 상태와 비교한다. 상태들의 가중합이 컨텍스트 벡터이다",
        "source": "the cat that we saw sleeps",
        "target": ("고양이가", "잔다"),
        "encoder": "인코더의 상태: 키와 값",
        "query": "쿼리",
        "context": "가중합",
        "vector": "컨텍스트 벡터",
        "decoder": "디코더의 상태",
        "note": "선이 굵을수록 가중치가 크다(예로 든 값)",
    },
}
FITS = (0.1, 1.6, 0.2, 0.4, 0.9, 3.0)  # how well each state of the source fits the query


def asking(names: dict) -> str:
    drawing = Drawing(760, 350, names["title"])
    exponentials = [math.exp(score) for score in FITS]
    places, (x, y) = [66 + number * 84 for number in range(6)], (276, 190)
    for number, word in enumerate(names["source"].split()):
        place, weight = places[number], exponentials[number] / sum(exponentials)
        drawing.text(place, 44, word)
        drawing.box(place, 58, 52, "h", "feed")
        if number:
            drawing.arrow((place - 58, 75), (place - 26, 75))
        drawing.line((place, 58 + BOX), (x + (number - 2.5) * 20, y), width=1 + 12 * weight)
        drawing.text(place + (18 if number > 2 else -18), 108, f"{weight:.2f}", "small")
    drawing.box(x, y, 150, names["context"], "norm")
    states = (560, 680)
    for place, word in zip(states, names["target"], strict=True):
        drawing.box(place, 250, 52, "s", "attention")
        drawing.arrow((place, 250 + BOX), (place, 310))
        drawing.text(place, 322, word)
    drawing.arrow((586, 267), (654, 267))
    drawing.arrow((534, 267), (x, 267), (x, y + BOX))
    drawing.text(405, 280, names["query"], "note")
    drawing.arrow((x + 75, y + 17), (680, y + 17), (680, 250))
    drawing.text(520, y + 3, names["vector"], "note")
    drawing.text(510, 340, names["decoder"], "note end")
    drawing.text(40, 20, names["encoder"], "note start")
    drawing.text(740, 20, names["note"], "note end")
    return drawing.svg()


# Page 1: the arithmetic of its example.

FLOW = {
    "en": {
        "title": "From a query and four keys to scores, weights and a blend of the values",
        "query": "query",
        "key": "key",
        "score": "score",
        "weight": "weight",
        "value": "weight × value",
        "context": "context",
    },
    "ko": {
        "title": "쿼리 하나와 키 네 개에서 점수, 가중치를 거쳐 값을 섞은 결과까지",
        "query": "쿼리",
        "key": "키",
        "score": "점수",
        "weight": "가중치",
        "value": "가중치 × 값",
        "context": "컨텍스트 벡터",
    },
}
WORDS, QUERY = ("I", "am", "a", "student"), (0.1, 0.2, 0.3)
KEYS = ((1.0, 0.0, 1.0), (0.0, 1.0, 0.0), (1.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def vector(numbers: Sequence[float], digits: int) -> str:
    return "[" + " ".join(f"{number:.{digits}f}" for number in numbers) + "]"


def flow(names: dict[str, str]) -> str:
    drawing = Drawing(760, 330, names["title"])
    scores = [sum(q * k for q, k in zip(QUERY, key, strict=True)) for key in KEYS]
    total = sum(map(math.exp, scores))
    weights = [math.exp(score) / total for score in scores]
    blended = [[weight * number for number in key] for weight, key in zip(weights, KEYS, strict=True)]
    drawing.text(60, 165, names["query"], "note")
    drawing.box(60, 118, 104, vector(QUERY, 1), "attention")
    columns = {"key": 210, "score": 335, "weight": 430, "value": 580}
    for name, x in columns.items():
        drawing.text(x, 305, names[name], "note")
    for number, word in enumerate(WORDS):
        y = 245 - number * 62
        drawing.arrow((112, 135), (158, y + 17))
        drawing.box(columns["key"], y, 104, vector(KEYS[number], 0), "feed")
        drawing.text(columns["key"], y + 43, word, "small")
        drawing.arrow((262, y + 17), (308, y + 17))
        drawing.box(columns["score"], y, 54, f"{scores[number]:.1f}", "norm")
        drawing.arrow((362, y + 17), (400, y + 17))
        drawing.box(columns["weight"], y, 60, f"{weights[number]:.2f}", "norm")
        drawing.arrow((460, y + 17), (508, y + 17))
        drawing.box(columns["value"], y, 144, vector(blended[number], 2), "plain")
        drawing.line((652, y + 17), (678, y + 17))
    drawing.line((678, 262), (678, 76))
    drawing.text(678, 305, names["context"], "note")
    for row, number in enumerate(map(sum, zip(*blended, strict=True))):
        drawing.box(722, 187 - row * 36, 62, f"{number:.3f}", "embed", 30)
    drawing.arrow((678, 166), (690, 166))
    return drawing.svg()


# Page 1: what the square root is for.

SHARP = {
    "en": {
        "title": "The weights of eight keys of 64 numbers, with and without the division by the square root",
        "unscaled": "softmax of the scores",
        "scaled": "softmax of the scores / √64",
        "note": "the same eight scores, with a standard deviation of about 7",
    },
    "ko": {
        "title": "64차원 키 여덟 개의 가중치. 제곱근으로 나누기 전과 나눈 뒤",
        "unscaled": "점수의 소프트맥스",
        "scaled": "점수 / √64의 소프트맥스",
        "note": "같은 점수 여덟 개. 표준편차는 약 7",
    },
}
SCORES = (-9.6, 2.4, 6.4, -3.2, 12.0, 0.8, -5.6, 8.8)


def sharp(names: dict[str, str]) -> str:
    drawing = Drawing(760, 250, names["title"])
    for left, name, scale in ((50, "unscaled", 1.0), (420, "scaled", 1 / 8)):
        exponentials = [math.exp(score * scale) for score in SCORES]
        drawing.text(left + 145, 230, names[name])
        drawing.line((left, 44), (left + 290, 44))
        for number, exponential in enumerate(exponentials):
            x, share = left + 22 + number * 35, exponential / sum(exponentials)
            drawing.cell(x, 44, 26, 140 * share, "bar")
            drawing.text(x, 44 + 140 * share + 12, f"{share:.2f}", "small")
            drawing.text(x, 30, f"{SCORES[number]:g}", "small")
    drawing.text(380, 10, names["note"], "note")
    return drawing.svg()


# Page 2: heads as strips.

HEADS = {
    "en": {
        "title": "An input of 768 numbers is projected, cut into 12 heads of 64, and joined again",
        "input": "one word: 768",
        "projected": "Q, K, V: 12 × 64",
        "each": "each head attends to all words",
        "joined": "joined: 768",
        "mixed": "output: 768",
    },
    "ko": {
        "title": "768차원 입력을 투영하여 64차원 헤드 12개로 나누고 다시 이어 붙인다",
        "input": "단어 하나: 768",
        "projected": "Q, K, V: 12 × 64",
        "each": "헤드마다 모든 단어를 본다",
        "joined": "이어 붙임: 768",
        "mixed": "출력: 768",
    },
}
STRIPS = ("attention", "feed", "norm", "embed", "plain")


def heads(names: dict[str, str]) -> str:
    drawing = Drawing(760, 330, names["title"])
    strip, count, left = 42, 12, 230
    places = [left + strip * (number + 0.5) for number in range(count)]
    middle = left + strip * count / 2
    rows = {"input": 10, "projected": 84, "each": 158, "joined": 222, "mixed": 286}
    for name, y in rows.items():
        drawing.text(left - 14, y + 14, names[name], "note end")
    drawing.cell(middle, rows["input"], strip * count, 28, "box frame")
    drawing.cell(middle, rows["mixed"], strip * count, 28, "box frame")
    for number, x in enumerate(places):
        kind = f"box {STRIPS[number % len(STRIPS)]}"
        drawing.cell(x, rows["projected"], strip - 8, 28, kind)
        drawing.cell(x, rows["each"], strip - 8, 28, kind)
        drawing.arrow((x, rows["projected"] + 28), (x, rows["each"]))
        drawing.cell(x, rows["joined"], strip, 28, kind)
        drawing.arrow((x, rows["each"] + 28), (x, rows["joined"]))
    for name, start, target in (("W^Q, W^K, W^V", "input", "projected"), ("W^O", "joined", "mixed")):
        drawing.arrow((middle, rows[start] + 28), (middle, rows[target]))
        drawing.text(middle + 10, (rows[start] + 28 + rows[target]) / 2, name, "shape start")
    return drawing.svg()


# Page 2: a reshape that is right, and one that is not.

CUTTING = {
    "en": {
        "title": "Three words of six numbers are cut into two heads, rightly and by a wrong reshape",
        "words": "the dog sleeps",
        "right": "right: [3, 6] → [3, 2, 3] → [2, 3, 3]",
        "wrong": "wrong: [3, 6] → [2, 3, 3]",
        "head": "head",
        "note": "one colour for each word",
    },
    "ko": {
        "title": "6차원 단어 세 개를 헤드 두 개로 나누는 올바른 방법과 잘못된 reshape",
        "words": "개가 지금 잔다",
        "right": "맞음: [3, 6] → [3, 2, 3] → [2, 3, 3]",
        "wrong": "틀림: [3, 6] → [2, 3, 3]",
        "head": "헤드",
        "note": "단어마다 한 색",
    },
}


def cut(*, is_right: bool) -> list[list[list[int]]]:
    """The numbers of each head, by word: of 3 words with 6 numbers, which are 0 to 17 in their order."""
    of_head, of_word = (3, 6) if is_right else (9, 3)
    return [[[of_head * head + of_word * word + k for k in range(3)] for word in range(3)] for head in range(2)]


def cutting(names: dict[str, str]) -> str:
    drawing = Drawing(760, 330, names["title"])
    side = 36

    def table(left: float, top: float, rows: Sequence[Sequence[int]]) -> None:
        for t, row in enumerate(rows):
            for k, number in enumerate(row):
                kind = ("attention", "feed", "embed")[number // 6]
                drawing.box(left + (k + 0.5) * side, top - (t + 1) * side, side - 2, str(number), kind, side - 2)

    table(96, 220, [range(6 * t, 6 * t + 6) for t in range(3)])
    for t, word in enumerate(names["words"].split()):
        drawing.text(88, 220 - (t + 0.5) * side, word, "end")
    drawing.text(204, 96, names["note"], "note")
    for top, name in ((300, "right"), (140, "wrong")):
        drawing.text(560, top + 16, names[name])
        drawing.arrow((324, 166), (412, top - 54))
        for head, rows in enumerate(cut(is_right=name == "right")):
            table(430 + head * 160, top, rows)
            drawing.text(484 + head * 160, top - 3 * side - 12, f"{names['head']} {head + 1}", "note")
    return drawing.svg()


# Page 3: the three masks.

MASKS = {
    "en": {
        "title": "The three masks: who may attend to whom in each of the three attentions",
        "encoder": "encoder self-attention",
        "decoder": "decoder self-attention",
        "cross": "encoder-decoder attention",
        "rows": "rows ask, columns answer; filled: may attend",
    },
    "ko": {
        "title": "세 가지 마스크: 원문의 패딩, 번역문에서 뒤에 나올 단어와 패딩, 그리고 다시 원문의 패딩",
        "encoder": "인코더 셀프 어텐션",
        "decoder": "디코더 셀프 어텐션",
        "cross": "인코더-디코더 어텐션",
        "rows": "행이 묻고 열이 답한다. 칠한 칸은 볼 수 있는 곳",
    },
}


def masks(names: dict[str, str]) -> str:
    drawing = Drawing(760, 300, names["title"])
    source, target = ["I", "am", "sam", "<pad>"], ["<bos>", "je", "suis", "sam", "<pad>"]
    tables = {
        "encoder": (source, source, lambda t, s: s < 3),
        "decoder": (target, target, lambda t, s: s <= t and s < 4),
        "cross": (target, source, lambda t, s: s < 3),
    }
    for number, (name, (rows, columns, is_seen)) in enumerate(tables.items()):
        left, top, side = 62 + number * 255, 225, 34
        drawing.text(left + side * len(columns) / 2, 285, names[name])
        for s, word in enumerate(columns):
            drawing.text(left + (s + 0.5) * side, top + 16, word, "small")
        for t, word in enumerate(rows):
            drawing.text(left - 6, top - (t + 0.5) * side, word, "small end")
            for s in range(len(columns)):
                kind = "seen" if is_seen(t, s) else "hidden"
                drawing.cell(left + (s + 0.5) * side, top - (t + 1) * side + 1, side - 2, side - 2, kind)
    drawing.text(380, 16, names["rows"], "note")
    return drawing.svg()


# Page 4: positions as clocks.

CLOCK = {
    "en": {
        "title": "Three clock hands at eight positions: the first turns fast, the later ones slowly",
        "position": "position",
        "pair": ("dimensions 0 and 1", "dimensions 16 and 17", "dimensions 40 and 41"),
    },
    "ko": {
        "title": "여덟 위치에서 본 세 개의 시곗바늘. 첫째는 빨리, 뒤의 것은 천천히 돈다",
        "position": "위치",
        "pair": ("차원 0과 1", "차원 16과 17", "차원 40과 41"),
    },
}


def clock(names: dict[str, str]) -> str:
    drawing = Drawing(760, 300, names["title"])
    drawing.text(160, 278, names["position"], "note end")
    for position in range(8):
        drawing.text(210 + position * 72, 278, str(position), "note")
    for row, pair in enumerate((0, 8, 20)):
        y = 220 - row * 82
        drawing.text(160, y, names["pair"][row], "note end")
        for position in range(8):
            x, angle = 210 + position * 72, position / 10_000 ** (2 * pair / 128)
            drawing.circle(x, y, 30)
            # The sine is drawn to the right, the cosine upwards: position 0 is at twelve o'clock.
            drawing.arrow((x, y), (x + 28 * math.sin(angle), y + 28 * math.cos(angle)))
    return drawing.svg()


# Page 5: how a word becomes tokens, and who changes a word's vector.

BPE = {
    "en": {"title": "The merges of byte pair encoding join the letters of lowest into two tokens", "token": "token"},
    "ko": {"title": "바이트 페어 인코딩이 lowest의 글자를 토큰 두 개로 합치는 과정", "token": "토큰"},
}
# The page's merges in their order; "ew", "ewest_" and "newest_" do not occur in this word.
MERGES = (("e", "s"), ("es", "t"), ("est", "_"), ("l", "o"), ("lo", "w"))
NUMBERS = (1, 2, 3, 6, 7)  # which of the page's merges these are


def bpe(names: dict[str, str]) -> str:
    drawing = Drawing(760, 330, names["title"])
    row = [(letter, 110 + place * 90, 14.0) for place, letter in enumerate("lowest_")]
    for letter, x, y in row:
        drawing.box(x, y, 46, letter, "frame")
    heights = {1: 82, 2: 152, 3: 222, 6: 82, 7: 152}
    for number, pair in zip(NUMBERS, MERGES, strict=True):
        at = next(i for i in range(len(row)) if (row[i][0], row[i + 1][0]) == pair)
        (left, left_x, left_y), (right, right_x, right_y) = row[at], row[at + 1]
        x, y = (left_x + right_x) / 2, heights[number]
        drawing.line((left_x, left_y + BOX), (x, y))
        drawing.line((right_x, right_y + BOX), (x, y))
        drawing.box(x, y, 76, left + right, "feed")
        drawing.text(x - 46, y + BOX / 2, f"{number}.", "note end")
        row[at : at + 2] = [(left + right, x, y)]
    for _, x, y in row:
        drawing.text(x, y + BOX + 16, names["token"], "note")
    return drawing.svg()


ALONE = {
    "en": {
        "title": "Attention connects all words; the feed-forward network processes each word alone",
        "attention": "attention: between words",
        "feed": "feed-forward: each word alone",
        "same": "the same W1, b1, W2, b2 for every word",
        "words": "the dog barks loudly",
    },
    "ko": {
        "title": "어텐션은 모든 단어를 잇고, 피드포워드 신경망은 단어를 하나씩 따로 처리한다",
        "attention": "어텐션: 단어와 단어 사이",
        "feed": "피드포워드: 단어마다 따로",
        "same": "모든 단어에 같은 W1, b1, W2, b2",
        "words": "개가 몹시 크게 짖는다",
    },
}


def alone(names: dict[str, str]) -> str:
    drawing = Drawing(760, 280, names["title"])
    words = names["words"].split()
    for left, name in ((60, "attention"), (460, "feed")):
        places = [left + number * 80 for number in range(len(words))]
        drawing.text(sum(places) / len(places), 262, names[name])
        for x, word in zip(places, words, strict=True):
            drawing.text(x, 44, word)
            drawing.box(x, 62, 58, "x", "plain")
            drawing.box(x, 200, 58, "y", "attention" if name == "attention" else "feed")
            if name == "attention":
                for other in places:
                    drawing.line((other, 62 + BOX), (x, 200))
            else:
                drawing.arrow((x, 62 + BOX), (x, 130))
                drawing.box(x, 130, 58, "FFN", "feed")
                drawing.arrow((x, 130 + BOX), (x, 200))
    drawing.text(580, 14, names["same"], "note")
    return drawing.svg()


# Page 5: the residual stream.

RESIDUAL = {
    "en": {
        "title": "The residual stream: every sub-layer reads it and adds to it, and each sum is normalized",
        "input": "embedding + positions",
        "sum": "+, norm",
        "output": "output of the encoder",
        "attention": "attention",
        "feed": "feed-forward",
        "layer": "layer",
    },
    "ko": {
        "title": "잔차 연결을 따라 흐르는 벡터. 서브층이 그것을 읽어 결과를 더하고, 합을 정규화한다",
        "input": "임베딩 + 위치",
        "sum": "+, 정규화",
        "output": "인코더의 출력",
        "attention": "어텐션",
        "feed": "피드포워드",
        "layer": "층",
    },
}


def residual(names: dict[str, str]) -> str:
    drawing = Drawing(760, 660, names["title"])
    x, step = 380, 96
    drawing.text(x, 16, names["input"])
    drawing.text(x, 646, names["output"])
    drawing.arrow((x, 28), (x, 632))
    for number in range(6):
        y = 36 + number * step
        drawing.text(40, y + 44, f"{names['layer']} {number + 1}", "note start")
        for name, kind, side in (("attention", "attention", -1), ("feed", "feed", 1)):
            start = y + 6 + (44 if side > 0 else 0)
            drawing.arrow((x, start), (x + side * 160, start), (x + side * 160, start + 8))
            drawing.box(x + side * 160, start + 8, 150, names[name], kind, 26)
            drawing.arrow((x + side * 85, start + 21), (x + side * 42, start + 21))
            drawing.box(x, start + 10, 84, names["sum"], "norm", 22)
    return drawing.svg()


# Page 6: teacher forcing.

TEACHER = {
    "en": {
        "title": "Teacher forcing: the decoder is given the true words and predicts the word after each of them",
        "given": "given",
        "wanted": "to predict",
        "decoder": "decoder: position t sees positions 0 to t",
    },
    "ko": {
        "title": "교사 강요: 디코더는 정답을 입력으로 받고, 위치마다 같은 문장의 다음 단어를 예측한다",
        "given": "입력",
        "wanted": "정답",
        "decoder": "디코더: 위치 t는 위치 0부터 t까지만 본다",
    },
}


def teacher_forcing(names: dict[str, str]) -> str:
    drawing = Drawing(760, 220, names["title"])
    words = ["<bos>", "je", "suis", "étudiant", "<eos>"]
    drawing.text(110, 27, names["given"], "note end")
    drawing.text(110, 193, names["wanted"], "note end")
    drawing.box(420, 92, 560, names["decoder"], "attention", 36)
    for t in range(4):
        x = 210 + t * 140
        drawing.box(x, 10, 100, words[t], "feed")
        drawing.arrow((x, 44), (x, 92))
        drawing.arrow((x, 128), (x, 176))
        drawing.box(x, 176, 100, words[t + 1], "norm")
    return drawing.svg()


# Page 7: label smoothing.

SMOOTHING = {
    "en": {
        "title": "Hard and smoothed labels of five classes, with epsilon 0.2",
        "hard": "hard: all on the right word",
        "soft": "smoothed, ε = 0.2",
    },
    "ko": {
        "title": "다섯 클래스의 하드 라벨과 스무딩한 라벨. ε은 0.2",
        "hard": "하드 라벨: 정답이 1",
        "soft": "소프트 라벨, ε = 0.2",
    },
}


def smoothing(names: dict[str, str]) -> str:
    drawing = Drawing(760, 240, names["title"])
    classes, right, epsilon = 5, 3, 0.2
    hard = [float(number == right) for number in range(classes)]
    soft = [(1 - epsilon) * share + epsilon / classes for share in hard]
    for left, name, shares in ((60, "hard", hard), (440, "soft", soft)):
        drawing.text(left + 130, 222, names[name])
        drawing.line((left, 36), (left + 260, 36))
        for number, share in enumerate(shares):
            x = left + 26 + number * 52
            drawing.cell(x, 36, 36, 140 * share, "bar")
            drawing.text(x, 36 + 140 * share + 14, f"{share:.2f}", "small")
            drawing.text(x, 18, str(number), "note")
    return drawing.svg()


# Page 8: what a cache keeps.

CACHE = {
    "en": {
        "title": "Three steps of writing with a cache: each adds the keys and values of one word",
        "cache": "keys and values of",
        "source": "the source",
        "step": "step",
        "words": ("<bos>", "le", "chien", "dort"),
        "note": "orange: computed in this step; grey: kept in the cache from earlier steps",
    },
    "ko": {
        "title": "캐시를 쓰며 단어 세 개를 쓰는 과정. 스텝마다 단어 하나의 키와 값이 더해진다",
        "cache": "키와 값",
        "source": "원문",
        "step": "스텝",
        "words": ("<bos>", "the", "dog", "sleeps"),
        "note": "주황색: 이 스텝에서 계산한 것. 회색: 앞 스텝부터 캐시에 보관한 것",
    },
}


def cache(names: dict) -> str:
    drawing = Drawing(760, 320, names["title"])
    for step in range(3):
        left, words = 30 + step * 245, names["words"]
        drawing.text(left + 112, 302, f"{names['step']} {step + 1}", "note")
        drawing.frame(left + 112, 88, 230, 132)
        drawing.text(left + 112, 202, names["cache"], "note")
        drawing.box(left + 112, 152, 204, names["source"], "frame" if step else "attention")
        for number in range(step + 1):
            x = left + 42 + number * 70
            drawing.box(x, 104, 64, words[number], "attention" if number == step else "frame")
        new = left + 42 + step * 70
        drawing.text(new, 46, words[step])
        drawing.arrow((new, 58), (new, 104))
        drawing.arrow((left + 112, 220), (left + 112, 258))
        drawing.text(left + 112, 272, words[step + 1])
    drawing.text(380, 14, names["note"], "note")
    return drawing.svg()


# Page 8: beam search as a tree.

BEAM = {
    "en": {
        "title": "Beam search with k = 2: two beginnings, four candidates, the best two go on",
        "step": ("step 1", "step 2", "step 3"),
        "start": "<bos>",
        "note": "log-probabilities; of k × k candidates the best k are kept",
    },
    "ko": {
        "title": "k가 2인 빔 탐색: 후보 둘에서 후보 넷이 나오고, 그중 가장 좋은 둘이 남는다",
        "step": ("스텝 1", "스텝 2", "스텝 3"),
        "start": "<bos>",
        "note": "로그 확률. 후보 k × k개 가운데 가장 좋은 k개만 남는다",
    },
}
# From each kept beginning, its two likeliest words and their probabilities.
TREE = {
    "": {"a": 0.5, "the": 0.4},
    "a": {"dog": 0.4, "cat": 0.35},
    "the": {"dog": 0.9, "cat": 0.05},
    "a dog": {"barks": 0.5, "sleeps": 0.4},
    "the dog": {"barks": 0.6, "sleeps": 0.3},
}


def beam(names: dict[str, str]) -> str:
    """Keeps the best two of each step, as the search does."""
    drawing = Drawing(760, 330, names["title"])
    kept = {"": (0.0, (60.0, 150.0))}
    drawing.box(60, 133, 76, names["start"], "plain")
    for step in range(3):
        x = 230 + step * 210
        drawing.text(x, 310, names["step"][step], "note")
        candidates = {
            f"{text} {word}".strip(): (score + math.log(share), place)
            for text, (score, place) in kept.items()
            for word, share in TREE[text].items()
        }
        best = sorted(candidates, key=lambda text: -candidates[text][0])[:2]
        kept = {}
        for number, (text, (score, (from_x, from_y))) in enumerate(candidates.items()):
            y = 240 - number * 62 - (62 if len(candidates) == 2 else 0)
            is_best = text in best
            drawing.line((from_x + 38, from_y), (x - 62, y + 17), "best" if is_best else "faint")
            word = text.rpartition(" ")[2]
            drawing.box(x, y, 124, f"{word}  {score:.2f}", "feed best" if is_best else "frame")
            if is_best:
                kept[text] = (score, (x + 24, y + 17))
    drawing.text(380, 16, names["note"], "note")
    return drawing.svg()


# Page 9: the paper's Table 2, English to German.

RESULTS = {
    "en": {
        "title": "English-German: BLEU and the cost of training of two older models and of the Transformer",
        "cost": "cost of training (floating-point operations, logarithmic)",
        "bleu": "BLEU",
        "models": ("GNMT + RL", "ConvS2S", "Transformer, base", "Transformer, big"),
    },
    "ko": {
        "title": "영어-독일어: 이전의 두 모델과 트랜스포머의 BLEU, 학습에 든 연산 수",
        "cost": "학습에 든 부동소수점 연산 수(로그 눈금)",
        "bleu": "BLEU",
        "models": ("GNMT + RL", "ConvS2S", "트랜스포머 base", "트랜스포머 big"),
    },
}
COST_AND_BLEU = ((2.3e19, 24.6), (9.6e18, 25.16), (3.3e18, 27.3), (2.3e19, 28.4))


def results(names: dict[str, str]) -> str:
    drawing = Drawing(760, 300, names["title"])

    def place(cost: float, bleu: float) -> tuple[float, float]:
        return 90 + 560 * (math.log10(cost) - 18.3) / 1.3, 60 + 48 * (bleu - 24)

    drawing.line((90, 60), (700, 60))
    drawing.line((90, 60), (90, 285))
    for cost in ("2e18", "5e18", "1e19", "2e19"):
        drawing.text(place(float(cost), 24)[0], 44, cost, "note")
    for bleu in range(24, 29):
        drawing.text(78, place(2e18, bleu)[1], str(bleu), "note end")
    drawing.text(395, 16, names["cost"], "note")
    drawing.text(102, 284, names["bleu"], "note start")
    for number, (name, point) in enumerate(zip(names["models"], COST_AND_BLEU, strict=True)):
        x, y = place(*point)
        drawing.cell(x, y - 7, 14, 14, "seen" if number > 1 else "box plain")
        drawing.text(x + 14 if number == 2 else x - 14, y, name, "start" if number == 2 else "end")
    return drawing.svg()


# Page 9: the three kinds of models by what a word may see.

FAMILIES = {
    "en": {
        "title": "What a word may see in an encoder, in a decoder without a source, and in both together",
        "encoder": "encoder-only (BERT)",
        "decoder": "decoder-only (GPT)",
        "both": "encoder-decoder",
        "rows": "rows ask, columns answer; filled: may attend",
        "source": "the dog sleeps",
        "target": "le chien dort",
    },
    "ko": {
        "title": "인코더 전용 모델, 디코더 전용 모델, 인코더-디코더에서 단어가 볼 수 있는 곳",
        "encoder": "인코더 전용(BERT)",
        "decoder": "디코더 전용(GPT)",
        "both": "인코더-디코더",
        "rows": "행이 묻고 열이 답한다. 칠한 칸은 볼 수 있는 곳",
        "source": "개가 지금 잔다",
        "target": "the dog sleeps",
    },
}


def families(names: dict[str, str]) -> str:
    drawing = Drawing(760, 300, names["title"])
    source, target = names["source"].split(), names["target"].split()
    tables = {
        "encoder": (source, lambda t, s: True),
        "decoder": (source, lambda t, s: s <= t),
        "both": (source + target, lambda t, s: s < 3 if t < 3 else s <= t),
    }
    for number, (name, (words, is_seen)) in enumerate(tables.items()):
        left, top, side = 72 + number * 235, 235, 52 if len(words) == 3 else 34
        drawing.text(left + side * len(words) / 2, 285, names[name])
        for t, word in enumerate(words):
            drawing.text(left + (t + 0.5) * side, top + (14 if t % 2 or side > 40 else 28), word, "small")
            drawing.text(left - 6, top - (t + 0.5) * side, word, "small end")
            for s in range(len(words)):
                kind = "seen" if is_seen(t, s) else "hidden"
                drawing.cell(left + (s + 0.5) * side, top - (t + 1) * side + 1, side - 2, side - 2, kind)
    drawing.text(380, 12, names["rows"], "note")
    return drawing.svg()


DIAGRAMS: dict[str, tuple[Callable[[dict], str], dict[str, dict]]] = {
    "recurrence": (recurrence, RECURRENCE),
    "asking": (asking, ASKING),
    "flow": (flow, FLOW),
    "sharp": (sharp, SHARP),
    "heads": (heads, HEADS),
    "cutting": (cutting, CUTTING),
    "masks": (masks, MASKS),
    "clock": (clock, CLOCK),
    "bpe": (bpe, BPE),
    "alone": (alone, ALONE),
    "residual": (residual, RESIDUAL),
    "figure_1": (figure_1, FIGURE_1),
    "teacher_forcing": (teacher_forcing, TEACHER),
    "smoothing": (smoothing, SMOOTHING),
    "cache": (cache, CACHE),
    "beam": (beam, BEAM),
    "results": (results, RESULTS),
    "families": (families, FAMILIES),
}


def drawn(name: str, language: str) -> str:
    """The SVG of a diagram in a language."""
    draw, names = DIAGRAMS[name]
    return draw(names[language])


def main() -> None:
    for language, folder in FOLDERS.items():
        folder.mkdir(exist_ok=True)
        for name in DIAGRAMS:
            (folder / f"{name}.svg").write_text(drawn(name, language), encoding="utf-8")


if __name__ == "__main__":
    main()
