"""Where sentences end, for the instructions of IFEval that count them, when NLTK's data is not on
this machine.

The harness's IFEval asks NLTK for its English Punkt model (Kiss and Strunk 2006), which NLTK
downloads. Nothing is downloaded here: where the model is missing, the same algorithm gets the
abbreviations below and no statistics. The two agree on ordinary prose; they can differ in how they
take a full stop after a rare abbreviation or an initial. Which of the two was used is part of every
evaluation's key, so they are never mixed up. `python -m nltk.downloader punkt_tab` installs NLTK's
own.
"""

from __future__ import annotations

from holdfast.support.cache import cache_folder
from holdfast.support.files import write_bytes_atomic

OWN = "abbreviations 1"
"""Raised with every change of the list."""

_ABBREVIATIONS = (
    "a.k.a a.m adm al apr approx apt assn aug ave b.a b.c b.s bldg blvd brig c.f ca capt cf cm "
    "cmdr co col corp d.c dec dept dr e.g ed eds et etc feb fig figs fri ft gen gov govt h.r hon "
    "i.e inc jan jr jul jun lat lb lbs lt ltd m.a m.d m.sc maj mar messrs min mr mrs ms mt mts nos "
    "nov oct op p p.m p.s ph.d pp pres prof pt pvt r.i.p rep rev rd sec sen sep sept sgt sq sr st "
    "supt tel thu tue u.k u.n u.s u.s.a univ v vol vols vs wed yd yr"
)


def sentence_model() -> str:
    """Which model of sentences is used on this machine: "nltk punkt_tab", or our own list and its
    number."""
    import nltk.data

    try:
        path = str(nltk.data.find("tokenizers/punkt_tab/english/"))
    except LookupError:
        return OWN
    return OWN if path.startswith(str(cache_folder())) else "nltk punkt_tab"


def fix_language_detection() -> None:
    """IFEval asks langdetect for the language of an answer, and langdetect draws: unseeded, the
    same answer follows an instruction in one run and breaks it in the next. A seed that the user
    has set stays."""
    import langdetect

    if langdetect.DetectorFactory.seed is None:
        langdetect.DetectorFactory.seed = 0


def provide_sentence_model() -> str:
    """Makes sure that NLTK finds a model, without a download; see `sentence_model` for what comes
    back.

    Raises:
        StorageError: the cache folder cannot be written.
    """
    import nltk.data

    model = sentence_model()
    if model == OWN:
        root = cache_folder() / "nltk_data"
        folder = root / "tokenizers" / "punkt_tab" / "english"
        files = {
            "abbrev_types.txt": "\n".join(_ABBREVIATIONS.split()),
            "collocations.tab": "",
            "sent_starters.txt": "",
            "ortho_context.tab": "",
        }
        for name, text in files.items():
            path = folder / name
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_bytes_atomic(path, text.encode())
        if str(root) not in nltk.data.path:
            nltk.data.path.append(str(root))
    return model
