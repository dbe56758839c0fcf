"""The HTML of Stack Exchange's posts as Markdown, which is what it was written in.

Code blocks are fenced and kept character by character, with their language where it is said; inline code keeps its
backticks; LaTeX between dollar signs is text and stays as it is. Lists, quotations, headings, tables, links and images
become their Markdown. Nothing is escaped: `a_1 * b` of a formula must stay what it is. What Markdown has no form for (a
superscript, a key) keeps its text, superscripts and subscripts also their tags.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

_MARK = "\x02{}\x03"
"""Stands for a code block until all else is done; the characters cannot be in XML."""
_MARKED = re.compile("\x02(\\d+)\x03")
_INLINE = {"strong": "**", "b": "**", "em": "*", "i": "*", "del": "~~", "s": "~~", "strike": "~~"}
_KEPT_TAGS = ("sub", "sup")
_BLOCKS = frozenset(
    {"p", "div", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "table", "tr"}
)
_SILENT = frozenset({"script", "style"})


def markdown(html: str) -> str:
    """HTML as Markdown. Broken HTML is read as browsers read it: what is open at the end is closed."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.result()


class _Frame:
    """An open element with the Markdown inside it so far."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.parts: list[str] = []
        self.count = 0
        """Items of a list so far."""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack = [_Frame("", {})]
        self.code: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "br":
            self._add("\n")
        elif tag == "hr":
            self._add("\n\n---\n\n")
        elif tag == "img":
            self._add(f"![{attributes.get('alt', '')}]({attributes.get('src', '')})")
        else:
            if tag in _BLOCKS and self.stack[-1].tag == "p":  # a paragraph ends where another block begins
                self._close()
            if tag == "li" and self.stack[-1].tag == "li":
                self._close()
            if tag == "code" and self.stack[-1].tag == "pre":
                self.stack[-1].attributes.setdefault("class", attributes.get("class", ""))
                return
            self.stack.append(_Frame(tag, attributes))

    def handle_endtag(self, tag: str) -> None:
        if any(frame.tag == tag for frame in self.stack[1:]):
            while self.stack[-1].tag != tag:
                self._close()
            self._close()

    def handle_data(self, data: str) -> None:
        frame = self.stack[-1]
        if frame.tag in ("ul", "ol", "table", "thead", "tbody", "tr") and not data.strip():
            return
        frame.parts.append(data)

    def result(self) -> str:
        """All of it; what is still open is closed."""
        while len(self.stack) > 1:
            self._close()
        text = _tidy("".join(self.stack[0].parts)).strip()
        return "\n".join(self._with_code(line) for line in text.split("\n")).strip("\n")

    def _add(self, text: str) -> None:
        self.stack[-1].parts.append(text)

    def _close(self) -> None:
        """Ends the innermost element and gives its Markdown to the one around it."""
        frame = self.stack.pop()
        inner = "".join(frame.parts)
        if frame.tag not in _SILENT:
            self._add(self._written(frame, inner))

    def _written(self, frame: _Frame, inner: str) -> str:
        tag = frame.tag
        if any(open_.tag == "pre" for open_ in self.stack):  # code has no marks of its own
            return inner
        if tag == "pre":
            return self._code_block(frame, inner)
        if tag == "code":
            return self._mark(_fenced_inline(inner)) if inner else ""
        if tag in _INLINE:
            bare = inner.strip()
            return inner.replace(bare, f"{_INLINE[tag]}{bare}{_INLINE[tag]}", 1) if bare else inner
        if tag in _KEPT_TAGS:
            return f"<{tag}>{inner}</{tag}>"
        if tag == "a":
            href, bare = frame.attributes.get("href", ""), inner.strip()
            return f"[{bare}]({href})" if href and bare and bare != href else bare or href
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            return f"\n\n{'#' * int(tag[1])} {' '.join(inner.split())}\n\n"
        if tag == "li":
            return self._item(inner)
        if tag in ("ul", "ol") and self.stack[-1].tag == "li":  # a list in an item stands close to it
            return f"{inner}\n"
        if tag == "blockquote":
            lines = _tidy(inner).strip().split("\n")
            return "\n\n" + "\n".join(f"> {line}".rstrip() for line in lines) + "\n\n"
        if tag in ("td", "th"):
            return f" {' '.join(inner.split())} |"
        if tag == "tr":
            return f"|{inner}\n"
        if tag == "table":
            return f"\n\n{_table(inner)}\n\n"
        return f"\n\n{inner}\n\n" if tag in _BLOCKS else inner

    def _item(self, inner: str) -> str:
        around = next((f for f in reversed(self.stack) if f.tag in ("ul", "ol")), None)
        if around is not None:
            around.count += 1
        marker = f"{around.count}. " if around is not None and around.tag == "ol" else "- "
        first, *rest = _tidy(inner).strip().split("\n")
        return "\n".join([f"\n{marker}{first}", *(f"{' ' * len(marker)}{line}".rstrip() for line in rest)])

    def _code_block(self, frame: _Frame, inner: str) -> str:
        language = re.search(r"lang(?:uage)?-([\w+#-]+)", frame.attributes.get("class", ""))
        named = language.group(1) if language is not None and language.group(1) not in ("none", "default") else ""
        content = inner.removeprefix("\n").rstrip("\n")
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", content)), default=0))
        return f"\n\n{self._mark(f'{fence}{named}{chr(10)}{content}{chr(10)}{fence}')}\n\n"

    def _mark(self, code: str) -> str:
        self.code.append(code)
        return _MARK.format(len(self.code) - 1)

    def _with_code(self, line: str) -> str:
        """A line with its code put back; further lines of a block are indented, or quoted, as its first."""
        prefix = "".join(c if c == ">" else " " for c in re.match(r"(?:> ?| +|[-*] |\d+\. )*", line).group())  # type: ignore[union-attr]

        def code(match: re.Match[str]) -> str:
            text = self.code[int(match.group(1))]
            return _MARKED.sub(code, text.replace("\n", f"\n{prefix}"))

        return _MARKED.sub(code, line)


def _tidy(text: str) -> str:
    """No blank line twice, none with spaces; the text of a line stays as it is."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.split("\n")))


def _fenced_inline(code: str) -> str:
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
    space = " " if code.startswith("`") or code.endswith("`") else ""
    return f"{fence}{space}{code}{space}{fence}"


def _table(rows: str) -> str:
    lines = [line for line in rows.strip().split("\n") if line.strip()]
    if lines:
        lines.insert(1, "|" + " --- |" * max(1, lines[0].count("|") - 1))
    return "\n".join(lines)
