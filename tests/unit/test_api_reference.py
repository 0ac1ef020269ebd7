"""docs/API.md is what the docstrings say, has every public name, and leads nowhere that is not there."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

import holdfast as hf
from reference import contents, docstrings, page, signatures

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "API.md").read_text()

# Names in annotations that need no explanation: Python's own.
PYTHONS = {"Any", "Callable", "False", "Iterable", "Iterator", "Literal", "Mapping", "None", "Path", "Self", "Sequence", "Set", "True"}  # fmt: skip


def undocumented() -> list[str]:
    """Entries, and methods and properties shown with them, that do not say what they do."""
    shown = {name: page.said(name) for name in contents.entries()}
    for name in contents.entries():
        for member, thing in page.members(name).items():
            shown[f"{name}.{member}"] = docstrings.docstring(thing)
    return [name for name, said in shown.items() if not said]


def anchors(text: str) -> list[str]:
    return [docstrings.anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """`scripts/api_reference`, with another place for the page."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    loader = SourceFileLoader("api_reference", str(ROOT / "scripts" / "api_reference"))
    spec = spec_from_loader("api_reference", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "PAGE", tmp_path / "API.md")
    return module


def test_the_page_is_what_the_docstrings_say() -> None:
    assert page.page() == PAGE, "docs/API.md is stale: run make api-reference"


def test_every_public_name_is_on_the_page_once() -> None:
    headings = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert {f"hf.{name}" for name in hf.__all__} <= set(headings)
    signed = set(re.findall(r"^([a-z]+\.\w+)\(", "".join(blocks("text")), re.MULTILINE))
    assert set(contents.public()) - set(headings) <= signed
    assert "stream.filter" in signed


def test_a_public_name_without_a_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "__all__", [*hf.__all__, "planted"])
    monkeypatch.setattr(hf.Flow, "planted", lambda self: None, raising=False)
    with pytest.raises(page.Unplaced, match=r"contents.py has hf.planted, flow.planted"):
        page.page()


def test_everything_public_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert undocumented() == []

    @dataclass
    class Planted:
        field: int

        def method(self) -> None: ...

    monkeypatch.setattr(hf, "Context", Planted)
    monkeypatch.setattr(hf.Flow.run, "__doc__", None)
    assert undocumented() == ["hf.Context", "flow.run", "hf.Context.method"]


def test_every_name_in_a_signature_is_explained() -> None:
    fields = re.findall(r"^- `(.+?)`(?=:|$)", PAGE.partition("## Types")[0], re.MULTILINE)
    written = "\n".join([block for block in blocks("text") if "├" not in block] + fields)
    used = set(re.findall(r"(?<![.\w])([A-Z]\w*)", re.sub(r'"[^"]*"', "", written)))
    entries = {name.rpartition(".")[2] for name in contents.entries()}
    assert used - entries - PYTHONS == {name for name in contents.TYPES if name[0].isupper()}


def test_links_lead_to_what_is_there() -> None:
    assert len(anchors(PAGE)) == len(set(anchors(PAGE)))
    for file, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", PAGE):
        target = DOCS / file if file else DOCS / "API.md"
        assert target.is_file(), file
        assert not anchor or anchor in anchors(target.read_text()), f"{file}#{anchor}"


def test_the_examples_are_python() -> None:
    for block in blocks("python"):
        ast.parse(block)
    assert blocks("pycon")  # they run where they are written, in the docstrings


def test_the_check_says_what_to_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["api_reference", "--check"])
    assert script.main() == 1
    assert "run make api-reference" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["api_reference"])
    assert script.main() == 0
    monkeypatch.setattr(sys, "argv", ["api_reference", "--check"])
    assert script.main() == 0
    script.PAGE.write_text(PAGE.replace("hf.files", "hf.file"))
    assert script.main() == 1


def test_a_signature_reads_as_it_would_be_written() -> None:
    def short(self, a: str, b: int = 10_000, /, *, c: tuple[str, ...] = ("x",)) -> None: ...

    def long(first: str = 'a "b"', *rest: dict[str, object] | None, within: bool = True, **named: hf.Context) -> str: ...  # fmt: skip

    assert signatures.signature("f.short", short) == (
        'f.short(a: str, b: int = 10_000, /, *, c: tuple[str, ...] = ("x",))'
    )
    assert signatures.signature("long", long).splitlines() == [
        "long(",
        '    first: str = "a \\"b\\"",',
        "    *rest: dict[str, object] | None,",
        "    within: bool = True,",
        "    **named: hf.Context,",
        ") -> str",
    ]


def test_a_docstring_becomes_markdown() -> None:
    text = "See `hf.sum` and docs/SINKS.md:\n\n    x = 1\n\n    y = 2\n\n>>> 1\n1"
    assert docstrings.markdown(text, ["hf.sum"]) == (
        "See [`hf.sum`](#hfsum) and [SINKS](SINKS.md):\n\n```python\nx = 1\n\ny = 2\n```\n\n```pycon\n>>> 1\n1\n```"
    )
