"""README states what committed results say."""

from pathlib import Path

import pytest

from validation.pages.figures import figures, main


def test_readme_states_the_figures_of_the_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its own sentences in `make demo`, which need not have run here."""
    assert main() == 0, capsys.readouterr().out
    sentences = [sentence for sentence, _ in figures()]
    (tmp_path / "README.md").write_text("\n".join(sentences).replace(" published pairs", " pairs"))
    assert main(tmp_path / "README.md") == 1
    assert capsys.readouterr().out.count("NOT IN README") == 1
