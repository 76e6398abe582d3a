"""What the site takes from outside docs/: README, notebooks with their outputs, every command's help, lanesim's names.

Not here: what stands where on the site (mkdocs.yml).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import click
import griffe
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

import lanesim
from sim.cli.main import lanesim as command

ROOT = Path(__file__).resolve().parent.parent
# mkdocs has docs/ in front, where another folder is called validation, and the package is not installed.
sys.path.append(str(ROOT))
from validation.pages.notebooks import stamp  # noqa: E402
from validation.tables import csv_table  # noqa: E402

_ELSEWHERE = re.compile(r"\[([^\]]*)\]\((?!docs/[\w/-]+\.)[\w./-]+\)")
"""A link to a folder, or to a file outside docs/, which the site does not have."""
_TABLE = re.compile(r"^\[[^\]]*\]\(([\w/-]+\.csv)\)$", re.MULTILINE)
"""A line that is a link to a table and nothing else."""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block's language and its lines."""
_EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)$", re.MULTILINE)
"""From its prompt to the next empty line."""
_FETCHES = re.compile(r'<script type="module">(?:(?!</script>).)*https?://.*?</script>', re.DOTALL)
"""What nbconvert adds to draw diagrams, of which there are none: nothing is fetched."""
COMMANDS = """# Which commands and options are there?

There is one command, `lanesim`. A sub-command takes a scenario file, options, or both, and the last one wins.
`--set` sets [any key](../scenario.md). Three options stand anywhere in a line:

- `--json FILE` writes the result for programs. `-` is standard output.
- `--verbose` prints what the answer rests on.
- `--overwrite` replaces files.

The exit status is 0 if all is done, and 1 if the run failed. It is 2 for bad input, with one line that says what was
wrong and what is right.
"""
ROLES = {"An engineer": "engineer", "A researcher": "researcher", "A GPU's owner": "gpu-owner"}
"""Who reads -> the tutorial, whose first command and answer the home page shows."""
NAMES = """# What does `import lanesim` offer?

A name that is not here may move.
"""


@event_priority(100)  # before mkdocs-jupyter, which makes pages of the notebooks that it finds
def on_files(files: Files, config: Any) -> Files:
    """Adds index.md, the pages of reference/ and every notebook. PluginError where one shows what other code did."""
    readme = _ELSEWHERE.sub(r"\1", (ROOT / "README.md").read_text()).replace("](docs/", "](")
    readme = readme.replace("## How far off", cards() + "## How far off", 1)
    names = sorted(lanesim.__all__, key=str.lower)
    pages = {
        "index.md": readme,
        "reference/cli.md": "\n".join([COMMANDS, *helps(command, click.Context(command, info_name="lanesim"))]),
        "reference/python.md": "\n".join([NAMES, *(f"::: lanesim.{name}\n" for name in names)]),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    files.append(File("page.js", str(ROOT / "sim" / "report"), config.site_dir, config.use_directory_urls))
    for notebook in sorted(ROOT.glob("notebooks/*.ipynb")):
        found = json.loads(notebook.read_text())
        if found["metadata"].get("lanesim") != stamp(found):
            raise PluginError(f"{notebook.name}: outputs of other code. Run python -m validation notebooks --write")
        files.append(File(f"notebooks/{notebook.name}", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_nav(nav: Navigation, config: Any, files: Files) -> Navigation:
    """PluginError where two files would become one."""
    if twice := written_twice(file.dest_uri for file in files):
        raise PluginError(f"several files of the site are called {', '.join(twice)}: one would overwrite the other")
    return nav


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """A table that has a line of its own stands below it. Notebooks are in docs/, as the site has them."""
    folder = ROOT / "docs" / Path(page.file.src_uri).parent
    markdown = markdown.replace("](../notebooks/", "](notebooks/")
    return _TABLE.sub(lambda link: f"{link[0]}\n\n{csv_table(folder / link[1])}\n", markdown)


def cards() -> str:
    """A card for each role: the tutorial, and what it shows up to its first answer: a command, and the first lines."""
    made = []
    for role, page in ROLES.items():
        text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text().replace("\\\n", "")
        shown: list[str] = []
        for block in (block for language, block in _BLOCK.findall(text) if not language):
            if not re.match("lanesim|pip|git", block):
                shown.append(block.partition("\n\n")[0])
                break
            shown += re.findall(r"^lanesim [^#\n]*", block, re.MULTILINE)[: not shown]
        lines = indent(re.sub(" +", " ", "\n".join(shown)), "    ")
        made.append(f"-   **[{role}, in ten minutes](tutorials/{page}.md)**\n\n    ```\n{lines}\n    ```\n")
    return '<div class="grid cards" markdown>\n\n' + "\n".join(made) + "\n</div>\n\n"


def written_twice(places: Iterable[str]) -> list[str]:
    """Places that stand there more than once."""
    return [place for place, count in Counter(places).items() if count > 1]


def on_post_page(output: str, page: Page, config: Any) -> str:
    """Links of a notebook lead to pages of the site; in the repository they lead to files."""
    if not page.file.src_uri.startswith("notebooks/"):
        return output
    output = re.sub(r'href="(\d\d_\w+)\.ipynb"', r'href="\1.html"', _FETCHES.sub("", output))
    return re.sub(
        r'href="\.\./docs/([\w/-]+)\.md"', lambda link: f'href="../{link[1].replace("README", "index")}.html"', output
    )


def helps(own: click.Command, context: click.Context) -> Iterator[str]:
    """A section for `own` and for every command below it: what `--help` prints."""
    yield f"## {context.command_path}\n\n```text\n{own.get_help(context)}\n```\n"
    if isinstance(own, click.Group):
        for name in own.list_commands(context):
            below = own.get_command(context, name)
            assert below is not None
            yield from helps(below, click.Context(below, info_name=name, parent=context, max_content_width=100))


class FencedExamples(griffe.Extension):
    """Shows the doctests of a docstring as code, outside sections of their own, too."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\1\n```\n", obj.docstring.value)
