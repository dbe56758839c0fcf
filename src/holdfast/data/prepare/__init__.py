"""A corpus out of files and folders (`holdfast data prepare`): documents with dates, each once, a
part held out.

| module | what |
|---|---|
| corpus | the documents of text files and of rows: which are kept, and which day each is of |
| dates | the day that a date says |
| inputs | the files behind the files and folders of a request |
| reading | records of a file with their places; what was skipped and what is malformed |
| run | one request: duplicates, order, the held-out side, files that are whole or absent, the record beside them |
"""
