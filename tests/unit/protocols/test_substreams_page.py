"""The tracker of docs/SUBSTREAMS.md, by itself, answers what the page says beside each question."""

from __future__ import annotations

from pathlib import Path

from pages import blocks

PAGE = Path(__file__).resolve().parents[3] / "docs" / "SUBSTREAMS.md"


def test_the_tracker_of_the_page_answers_as_it_says(capsys) -> None:
    names: dict[str, object] = {}
    answers = []
    for line in blocks(PAGE, "python")[1].splitlines():
        code, _, shown = line.partition("  # ")
        if not shown:
            exec(code, names)
        elif code.startswith("print("):
            exec(code, names)
            assert capsys.readouterr().out == f"{shown}\n"
        else:
            answers.append((eval(code, names), eval(shown, names)))
    assert len(answers) == 2
    assert all(found == shown for found, shown in answers), answers
