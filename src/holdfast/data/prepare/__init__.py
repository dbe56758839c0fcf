"""From the files in which public data sets are published to rows that can be trained on (`holdfast data prepare`).

| module | what |
|---|---|
| registry | the formats by name |
| law, metamath, stackexchange, starcoder_instructions, ultrachat, quality | one format each: a record as a row |
| corpus | new text of any kind, as documents with dates |
| wet, dates, near_duplicates | for corpora: WARC records of text, the day a date says, documents that are nearly the
same |
| inputs | the files behind the files and folders of a request |
| reading | records of a file with their places, one in memory at a time; what was skipped and what is malformed |
| html_text | the HTML of posts as Markdown, code and LaTeX as they are |
| run | one request: de-duplication, order, the held-out side, files that are whole or absent, the record beside them |
"""
