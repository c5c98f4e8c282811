"""A hook of mkdocs: formulas become MathML while the site is built, which browsers show without a script or a font.

The pages write LaTeX as GitHub reads it best: $`x`$ in a line, ```math for a block. The extension arithmatex finds it.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

GITHUB_INLINE = re.compile(r"\$`([^`\n]+)`\$")
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return GITHUB_INLINE.sub(r"$\1$", markdown)


def on_page_content(content: str, **_: Any) -> str:
    content = content.replace("{aligned}", "{split}")  # the same to readers, and known to latex2mathml
    content = INLINE.sub(lambda found: convert(html.unescape(found[1])), content)
    return DISPLAY.sub(
        lambda found: f'<div class="formula">{convert(html.unescape(found[1]), display="block")}</div>', content
    )
