from pathlib import Path

from aiacc import _core
from aiacc.run.help_env import as_markdown, as_text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "environment.md"


def test_page_is_up_to_date():
    assert PAGE.read_text() == as_markdown(_core.env_table()), "run `make docs`"


def test_both_forms_show_every_variable_alias_and_default():
    rows = _core.env_table()
    assert len(rows) > 20
    text, page = as_text(rows), as_markdown(rows)
    for name, alias, kind, default, _ in rows:
        for form in (text, page):
            assert name in form
            assert alias in form
            assert kind in form
            assert default in form


def test_markdown_escapes_bars():
    assert "a\\|b" in as_markdown([("N", "", "a|b", "", "meaning")])
