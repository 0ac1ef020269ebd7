"""Docstrings as Markdown: paragraphs as they are, examples and what is indented as blocks, names and pages as links."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection

_CODE = re.compile(r"`([\w.]+)`")
_PAGE = re.compile(r"`?\bdocs/(\w+)\.md`?")


def docstring(thing: object) -> str:
    """What a thing says of itself; nothing where its docstring is inherited from `object` or made by `dataclass`."""
    written = getattr(thing, "__doc__", None) or ""
    made = isinstance(thing, type) and written.startswith(f"{thing.__name__}(")
    return "" if made else inspect.cleandoc(written)


def markdown(text: str, names: Collection[str]) -> str:
    """A docstring in Markdown, with links to those of `names` that it mentions."""
    paragraphs = re.split(r"\n{2,}", text.strip("\n"))
    shown = [_paragraph(paragraph, names) for paragraph in _joined(paragraphs)]
    return "\n\n".join(shown)


def _joined(paragraphs: list[str]) -> list[str]:
    """Paragraphs, but what is indented and only divided by blank lines is one."""
    joined: list[str] = []
    for paragraph in paragraphs:
        if joined and joined[-1].startswith("    ") and paragraph.startswith("    "):
            joined[-1] += f"\n\n{paragraph}"
        else:
            joined.append(paragraph)
    return joined


def _paragraph(text: str, names: Collection[str]) -> str:
    if text.startswith(">>>"):
        return block("pycon", text)
    if text.startswith("    "):
        code = textwrap.dedent(text)
        return block("python" if _is_python(code) else "text", code)
    linked = _PAGE.sub(r"[\1](\1.md)", text)
    return _CODE.sub(lambda found: link(found[1]) if found[1] in names else found[0], linked)


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def block(language: str, code: str) -> str:
    """A block of code."""
    return f"```{language}\n{code}\n```"


def anchor(heading: str) -> str:
    """Where a heading is found on its page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(heading: str, text: str = "") -> str:
    """A link to an entry of this page."""
    return f"[`{text or heading}`](#{anchor(heading)})"
