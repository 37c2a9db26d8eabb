"""What the site needs beyond docs/: pages of the top folder, sources that pages link to, and links that fit."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
TOP = {  # pages of the top folder by their name in the site
    "weaknesses.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
RESULT = re.compile(r'(?:\]\(|src="|srcset=")\.\./(results/[\w./-]+)')
SOURCE = re.compile(r"\]\(\.\./(src/[\w/]+\.py)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the top folder, and every picture, result and source file that a page links to."""
    for name, path in TOP.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    texts = [Path(file.abs_src_path).read_text() for file in files.documentation_pages() if file.abs_src_path]
    for path in sorted({path for text in texts for path in RESULT.findall(text)}):
        title = f"# {path}\n\n".encode() if path.endswith(".md") else b""
        files.append(File.generated(config, path, content=title + (ROOT / path).read_bytes()))
    for path in sorted({path for text in texts for path in SOURCE.findall(text)}):
        shown = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n```python\n{(ROOT / path).read_text()}```\n"
        files.append(File.generated(config, path.replace(".py", ".md"), content=shown))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository as links of the site."""
    markdown = SOURCE.sub(lambda found: f"]({found[1].replace('.py', '.md')})", markdown)
    markdown = re.sub(r'(\]\(|src="|srcset=")(?:\.\./)?results/', r"\1results/", markdown)
    for name, path in TOP.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{path}", f"]({name}", markdown)
    markdown = re.sub(r"\]\((?:\.\./)?README\.md", "](index.md", markdown)
    return re.sub(r"\]\(docs/", "](", markdown)
