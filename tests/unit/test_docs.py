"""Check the documentation: snippets, commands, links, outputs of the examples, prose."""

import doctest
import re
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import gallery
import links
import pytest
import reference
import sources
import tables
import typer

import fedpage as fp
from fedpage.cli import main
from fedpage.codecs import CODECS
from fedpage.core.metrics import METRICS
from fedpage.core.spec import Registry
from fedpage.data.partition import PARTITIONS
from fedpage.data.registry import DATASETS, LibsvmFile
from fedpage.methods import METHODS
from fedpage.runs import build

ROOT = Path(__file__).resolve().parents[2]


DOCUMENTS = {path.relative_to(ROOT).as_posix(): path for path in links.documents()}


def blocks(name: str, language: str = "python") -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def keep_registries():
    """Remove the entries that a snippet registers, so that other tests do not see them."""
    registries: list[Registry] = [PARTITIONS, DATASETS, METRICS, METHODS, CODECS]
    before = [set(registry) for registry in registries]
    yield
    for registry, names in zip(registries, before, strict=True):
        for name in set(registry) - names:
            del registry[name]


def run_snippets(name: str, real) -> dict:
    """Run the snippets of a document one after the other and return their variables.

    Runs of a thousand rounds and more are shortened.
    """
    names: dict = {"__name__": name}
    for number, code in enumerate(blocks(name)):
        for data in re.findall(r'load\("(\w+)"', code):
            if isinstance(DATASETS.get(data), LibsvmFile):
                real(data)
        code = re.sub(r"\brounds=\d{4,}", "rounds=100", code)
        try:
            exec(compile(code, f"{name}, snippet {number}", "exec", dont_inherit=True), names)
        except ImportError as error:
            missing = (error.name or str(error)).partition(".")[0]
            pytest.skip(f"{name} needs an extra: {missing}")
        except fp.InputError as error:
            extra = re.search(r"pip install '(fedpage\[\w+\])'", str(error))
            if not extra:
                raise
            pytest.skip(f"{name} needs an extra: {extra[1]}")
    return names


TESTED_BELOW = {"CONTRIBUTING.md", "README.md"}


@pytest.mark.parametrize(
    "name", [name for name in DOCUMENTS if blocks(name) and name not in TESTED_BELOW]
)
def test_snippets(name, real, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_snippets(name, real)


def test_the_snippet_of_the_readme(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_snippets("README.md", real)["history"].last("round") == 500
    assert (tmp_path / "curve.pdf").exists()


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert "make demo" in text
    assert "make test" in text


def test_links_between_documents_lead_somewhere():
    wrong, _ = links.check_markdown(DOCUMENTS.values())
    assert not wrong


def commands(name: str) -> list[tuple[str, bool]]:
    """Return the command lines of a document, and whether each is complete or only mentioned."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(
        r"^```(?:sh|bash|console|text)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE
    )
    lines = [
        (line.removeprefix("Run it: "), True)
        for block in found
        for line in re.sub(r"\\\n", "", block).splitlines()
    ]
    lines += [(line, False) for line in re.findall(r"`((?:fedpage|make) [^`\n]+)`", text)]
    lines = [(line.partition(" # ")[0].partition("  #")[0].strip(), whole) for line, whole in lines]
    return [(line, whole) for line, whole in lines if line.startswith(("fedpage ", "make "))]


def parse(line: str, whole: bool) -> None:
    """Parse a command line as `fedpage` does, without running it; of a mention, only the names."""
    words = shlex.split(line)[1:]
    takes_method = words[:1] in (["run"], ["tune"])
    command = typer.main.get_command(main.app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        if name == "|":
            return  # fedpage data list | fetch | ...
        assert name in command.commands, f"{line}: there is no command {name}"
        command = command.commands[name]
        command = command.load() if hasattr(command, "load") else command
    known = {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    if takes_method and words and not words[0].startswith("-"):
        entry = build.find_method(words[0].replace("examples/", f"{ROOT}/examples/"))
        names = list(entry.hyper_parameters)
        known |= {f"--{name}" for name in names} | {f"--{name.replace('_', '-')}" for name in names}
    unknown = [
        word for word in words if word.startswith("--") and word.partition("=")[0] not in known
    ]
    assert not unknown, f"{line}: there is no option {unknown[0]}"
    if whole:
        command.make_context(command.name, words)


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if commands(name)])
def test_command_lines_are_valid(name):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for line, whole in commands(name):
        if line.startswith("make "):
            asked = {word for word in line.split()[1:] if "=" not in word}
            assert asked <= targets, f"{name}: {line}"
        else:
            parse(line, whole)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_formulas_are_correct_on_github(name):
    """GitHub's Markdown removes some signs of a formula first: escapes of punctuation, emphasis."""
    text = links.strip_code((ROOT / name).read_text(encoding="utf-8"))
    inline = re.findall(r"(?<![$\\])\$(?!\$)([^$\n]+)\$(?!\$)", text)
    for formula in inline + re.findall(r"\$\$(.*?)\$\$", text, flags=re.DOTALL):
        assert not re.search(r"\\[^a-zA-Z]|[})\]]_|\*|<|~", formula), formula
    for formula in inline:
        assert formula == formula.strip(), formula


def test_code_that_pages_ask_for_exists():
    wanted = {
        name
        for path in DOCUMENTS.values()
        for name in sources.names_in(path.read_text(encoding="utf-8"))
    }
    assert len(wanted) > 15
    for name in wanted:
        path, text = sources.source(name)
        assert (ROOT / path).is_file()
        assert text.strip()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_code_in_pages_is_the_source(name):
    text = DOCUMENTS[name].read_text(encoding="utf-8")
    assert text == sources.write_code(text), "run: python tools/docs/tables.py"


def test_every_method_has_a_page_that_shows_it():
    pages = {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in DOCUMENTS
        if path.startswith("docs/methods/")
    }
    shown = {name for text in pages.values() for name in sources.names_in(text)}
    for name, entry in fp.METHODS.items():
        path = f"{entry.cls.__module__}.{entry.cls.__name__}"
        assert any(code.startswith(path) for code in shown), name
    for text in pages.values():
        assert "lient state" in text
        assert "When to choose" in text


@pytest.mark.parametrize("name", tables.PARTS)
def test_generated_parts_are_up_to_date(name):
    part = tables.PARTS[name]
    assert part.read() == part.make(), "run: python tools/docs/tables.py"


def test_the_table_of_methods_is_that_of_the_command_line_and_complete(run):
    code, table, _ = run("methods", "--markdown")
    assert code == 0
    assert table in (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    for name, entry in fp.METHODS.items():
        assert table.count(f"`{name}`") == 1
        assert f"| [{entry.label}](methods/{entry.page}.md) `{name}`" in table or entry.preset


def test_the_navigation_has_every_page_of_a_method():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").as_posix()
        assert len(re.findall(rf"[:-] {re.escape(name)}\n", navigation)) == 1, name


def test_every_mistake_of_public_code_is_listed():
    text = (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8")
    words = " ".join(text.split()).lower()
    names = [name for names in tables.mistakes().values() for name in names]
    missing = [name for name in names if name.lower() not in words]
    assert not missing, "run: python tools/docs/tables.py"


def test_the_navigation_has_every_page_of_the_reference():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f": api/{name}.md\n" in navigation for name in reference.PAGES)


def test_the_reference_has_every_public_name():
    listed = {path for _, _, paths in reference.PAGES.values() for path in paths}
    for name, home in fp._MODULE_OF.items():
        if home in ("fedpage", "fedpage._version", "fedpage.report"):
            continue
        module = home.removeprefix("fedpage.")
        assert {module, f"{module}.{name}"} & listed, (
            f"{home}.{name} is on no page of tools/docs/reference.py"
        )


@pytest.mark.parametrize("tool", [gallery, links])
def test_the_tools_doctests(tool):
    assert doctest.testmod(tool).failed == 0


def require_packages(example, real) -> None:
    """Skip the test of an example whose packages or data are not here."""
    beside = {path.stem for path in example.path.parent.glob("*/*.py")}
    for package in sorted(
        example.imports - set(sys.stdlib_module_names) - {"fedpage", "numpy"} - beside
    ):
        pytest.importorskip(package, reason=f"{example.path.name} needs {package}")
    if "local_federation" in example.path.read_text(encoding="utf-8"):
        pytest.importorskip("flwr", reason="this needs Flower: pip install 'fedpage[flower]'")
    if "flower" in example.name:
        pytest.importorskip(
            "ray", reason="Flower's simulation needs ray: pip install 'fedpage[flower-simulation]'"
        )
    if example.name == "quickstart":
        real("a9a")


@pytest.mark.parametrize("example", gallery.find_examples(), ids=lambda example: example.name)
def test_every_example_prints_what_the_gallery_shows(example, real, tmp_path, monkeypatch):
    """A long example runs for a round only, and has the table's headings and rows."""
    require_packages(example, real)
    monkeypatch.chdir(tmp_path)
    assert example.output.exists(), f"run: python tools/docs/gallery.py {example.name}"
    full = example.output.read_text(encoding="utf-8")
    if example.is_long:
        output = gallery.run(example, "--rounds", "1")
        assert output.splitlines()[0] == full.splitlines()[0]
        rows = [[line[:10] for line in gallery.table_of(text)] for text in (output, full)]
        assert rows[0] == rows[1]
    else:
        output = gallery.run(example)
        assert gallery.is_similar(output, full), output
    drawn = list(tmp_path.glob("*.png"))
    assert example.image.exists() == bool(drawn)
    assert all(picture.stat().st_size > 10_000 for picture in drawn)


def test_contributing_shows_the_examples_as_they_are():
    method, problem = blocks("CONTRIBUTING.md")
    for shown, name in ((method, "own_method.py"), (problem, "own_problem.py")):
        text = (ROOT / "examples" / name).read_text(encoding="utf-8")
        assert shown.strip() == text.split("\n\nif __name__")[0].strip()


def test_the_own_engine_survives_clients_that_fail():
    """A client that raises is a rejected reply: the round retries, then continues without it."""
    module = runpy.run_path(str(ROOT / "examples" / "own_engine.py"))
    problem = fp.Quadratic.random(8, 5, 4, seed=3)
    engine = module["ThreadEngine"](problem, fp.SCAFFOLD(S=8, K=2, eta_l=0.1), seed=0)
    work = engine.clients[3].work
    engine.clients[3].work = lambda message, round: work(message, round) if round else 1 / 0
    engine.step()
    engine.step()
    assert (engine.costs.round, engine.costs.missing, engine.costs.rejected) == (2, 3, 3)


def test_every_public_name_has_a_docstring_and_is_listed():
    torch = {name for name, home in fp._MODULE_OF.items() if ".torch." in home}
    for name in set(fp.__all__) - (set() if find_spec("torch") else torch):
        assert getattr(fp, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fp.nothing  # noqa: B018


def test_the_faults_of_the_documentation(tmp_path, run):
    (toml,) = blocks("docs/faults.md", "toml")
    (tmp_path / "faults.toml").write_text(toml, encoding="utf-8")
    small = ["--data", "census:rows=400", "--clients", "10", "--S", "3", "--rounds", "30"]
    words = [*small, "--partition", "label-shards", "--faults", "faults.toml"]
    code, out, err = run("run", "fedpage", *words)
    assert code == 0, err
    assert "rejected: " in out


@pytest.mark.parametrize("name", DOCUMENTS)
def test_lines_fit_the_page(name):
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        assert len(line) <= 100 or line.startswith(("|", "<!--", "![")), line
    for line in "".join(blocks(name, "sh")).splitlines():
        assert len(line) <= 92, line
