"""In which language a reply is: by its script, and among Latin ones by the most frequent words.

A rule for telling a model that answers in another language than it was asked in, not a detector:
Cyrillic script is called Russian, Arabic script Arabic and Devanagari Hindi, whatever language it
is, and a text of a few words without any of the frequent ones has no language. Code in fences does
not count.
"""

from __future__ import annotations

import re

from holdfast.evaluation.text.reply_form import prose

_SCRIPTS = {
    "zh": "\u4e00-\u9fff",
    "ja": "\u3040-\u30ff",
    "ko": "\uac00-\ud7af",
    "ru": "\u0400-\u04ff",
    "el": "\u0370-\u03ff",
    "ar": "\u0600-\u06ff",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
}
_KANA = 0.1
"""Japanese has Chinese characters, too: with more kana than this share of them, a text is
Japanese."""
_FREQUENT = {
    "en": "the of and to in is that it for are with as was this be by on an from how what they has",
    "de": "der die das und ist nicht ein eine von mit den zu im auf für sich dem des auch es sind",
    "fr": "le la les et est des une un dans que qui pour sur pas du au par ce plus il on ou avec",
    "es": "el la los las y es de que en un una por con para se del al como más su o hay qué cómo",
    "it": "il lo la gli che di è un una per con non del della sono si nel le dei da in delle come",
    "pt": "o a os as e é de que em um uma para com não do da dos por se mais no na são como",
    "nl": "de het een en van is dat niet op te zijn met voor die ook aan er in wordt dit zich om",
}
_STOP_WORDS = {language: frozenset(text.split()) for language, text in _FREQUENT.items()}
LANGUAGES = (*_STOP_WORDS, *_SCRIPTS)
"""Those that can be told, as ISO 639-1 has them."""


def language_of(text: str) -> str | None:
    """The language of a text: the script of more than half of its letters, else the one that most
    of its frequent words belong to, at least two and a tenth of all words; None where nothing says
    which."""
    text = prose(text).lower()
    letters = sum(map(str.isalpha, text))
    counts = {}
    for language, script in _SCRIPTS.items():
        counts[language] = len(re.findall(f"[{script}]", text))
    if counts["ja"] > _KANA * counts["zh"]:
        counts["ja"] += counts.pop("zh")
    for language, count in counts.items():
        if count > letters / 2:
            return language
    words = re.findall(r"[^\W\d_]+", text)
    hits = {}
    for language, stop_words in _STOP_WORDS.items():
        hits[language] = sum(word in stop_words for word in words)
    second, first = sorted(hits, key=lambda name: hits[name])[-2:]
    is_enough = hits[first] >= max(2, len(words) / 10)
    return first if is_enough and hits[first] > hits[second] else None
