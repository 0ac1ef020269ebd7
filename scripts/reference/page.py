"""Puts docs/API.md together."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass

import holdfast
from reference import contents, docstrings, signatures
from reference.contents import Section
from reference.signatures import Field

HEAD = """\
# The API

Every public function, class and method: how it is called, with the defaults of its arguments, and what it does.

```python
import holdfast as hf
```

In signatures, `flow` is an `hf.Flow`, and `stream`, `grouped` and `feedback` are what its methods give. What comes behind `*` is
given by name. A schema is text as Spark SQL reads it, such as `"id string, amount double, ts timestamp"`; a duration is text such
as `"10 seconds"` or `"1 hour 30 minutes"`, in units from microseconds to weeks. What cannot work is refused with a
[`hf.PlanError`](#hfplanerror), most of it when the flow is described, the rest before anything runs.

This page is written from the docstrings by `make api-reference`."""


class Unplaced(Exception):
    """A public name is in no section."""


def page() -> str:
    """The whole page."""
    if missing := contents.unplaced():
        raise Unplaced(f"no section of scripts/reference/contents.py has {', '.join(missing)}")
    parts = [
        HEAD,
        _overview(),
        *(part for section in contents.SECTIONS for part in _section(section)),
        _types(),
    ]
    return "\n\n".join(parts) + "\n"


def members(name: str) -> dict[str, object]:
    """What the entry of a class shows beside its fields: public methods and properties that it defines, by name."""
    cls = contents.thing(name)
    if not isinstance(cls, type) or cls in contents.CLASSES.values():
        return {}
    return {
        member: thing
        for member, thing in vars(cls).items()
        if not member.startswith(("_", "test_"))
        and (inspect.isfunction(thing) or isinstance(thing, property | classmethod))
    }


def said(name: str) -> str:
    """The docstring of an entry."""
    described_by = contents.DESCRIBED_BY.get(name) or (contents.thing(name),)
    return "\n\n".join(map(docstrings.docstring, described_by))


def _overview() -> str:
    lines = []
    for section in contents.SECTIONS:
        links = ", ".join(docstrings.link(name, name.rpartition("holdfast.")[2]) for name in section.entries)
        lines.append(f"- [{section.title}](#{docstrings.anchor(section.title)}): {links}")
    return "\n".join([*lines, "- [Types](#types) in the signatures"])


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    yield _markdown(section.says)
    for name, page in section.entries.items():
        yield from _entry(name, page)


def _entry(name: str, page: str | None) -> Iterator[str]:
    thing = contents.thing(name)
    yield f"### `{name}`"
    if written := _signature(name, thing):
        yield docstrings.block("text", written)
    yield _markdown(said(name))
    if isinstance(thing, type):
        yield from _of_class(name, thing)
    if page is not None:
        yield f"More: [{page.partition('.')[0]}]({page})"


def _signature(name: str, thing: object) -> str:
    """How it is called; nothing for a class that nobody calls, or whose fields say it."""
    if inspect.isfunction(thing):
        return "\n".join(signatures.signature(one, thing) for one in (name, *contents.aliases(name)))
    if thing is holdfast.Flow or thing is holdfast.HoldfastError:
        return signatures.signature(name, thing)
    return ""


def _of_class(name: str, cls: type) -> Iterator[str]:
    checks = [member for member in vars(cls) if member.startswith("test_")]
    lines = [_item(_field(name, field), field.says) for field in _fields(cls, bool(checks))]
    lines += [
        _item(_member(member, thing), docstrings.docstring(thing)) for member, thing in members(name).items()
    ]
    if lines:
        yield "\n".join(lines)
    if checks:
        yield "It checks that:"
        yield "\n".join(f"- {check.removeprefix('test_').replace('_', ' ')}" for check in checks)


def _fields(cls: type, is_suite: bool) -> list[Field]:
    """The fields that a user sets or reads."""
    return signatures.fields(cls) if is_dataclass(cls) or is_suite else []


def _field(name: str, field: Field) -> str:
    return field.type_only if hasattr(contents.GIVEN, name) else field.written


def _member(name: str, thing: object) -> str:
    if isinstance(thing, property) and thing.fget is not None:
        return f"{name}: {signatures.annotation(inspect.signature(thing.fget).return_annotation)}"
    function = thing.__func__ if isinstance(thing, classmethod) else thing
    assert callable(function)
    return signatures.one_line(name, function)


def _item(code: str, text: str) -> str:
    """A line of a list; further paragraphs stand below it."""
    lines = f"`{code}`: {_markdown(text)}" if text else f"`{code}`"
    return "- " + lines.replace("\n", "\n  ").replace("\n  \n", "\n\n")


def _types() -> str:
    lines = [_item(name, text) for name, text in contents.TYPES.items()]
    return "\n".join(["## Types", "", *lines])


def _markdown(text: str) -> str:
    return docstrings.markdown(text, contents.entries())
