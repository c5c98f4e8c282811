"""A hook of mkdocs: formulas become MathML while the site is built, which browsers show without a script or a font.

The pages write LaTeX between dollar signs, as GitHub reads it too; the extension arithmatex finds it.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    content = INLINE.sub(lambda found: convert(html.unescape(found[1])), content)
    return DISPLAY.sub(
        lambda found: f'<div class="formula">{convert(html.unescape(found[1]), display="block")}</div>', content
    )
