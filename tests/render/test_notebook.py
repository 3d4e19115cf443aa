"""The HTML of a report: self-contained, and nothing in it is a tag of somebody else's."""

from dataclasses import replace

from reports import bert, hostile

from headscope.render.screen import result_html, result_text


def test_html_is_one_block_with_inline_styles() -> None:
    html = result_html(bert())
    assert html.startswith("<pre")
    assert html.endswith("</pre>")
    assert "classifier.weight" in html
    assert "<style" not in html


def test_names_are_escaped_in_html() -> None:
    report = hostile()
    evil = replace(report, model=replace(report.model, labels=("<script>alert(1)</script>", "&", "b")))
    assert "<script" not in result_html(evil)
    assert "&lt;script&gt;" in result_html(evil)


def test_text_follows_the_command_that_made_the_report() -> None:
    assert "hidden states" in result_text(bert(), 80)
    assert "hidden states" not in result_text(replace(bert(), command="diff-weights", head=None), 80)
