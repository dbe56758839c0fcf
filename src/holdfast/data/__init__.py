"""Training data: from what the user names to what the trainer takes.

| module | what |
|---|---|
| sources | a file, files, a folder or a hub id -> rows; bad input named by file and line; content hashes |
| readers, json_rows, arrow_cache | how local files are read, validated and kept memory-mapped |
| formats, layouts | rows of any known layout -> the columns of TRL's SFTTrainer, every row checked |
| mixing | replay rows among tokenised train rows |
| prepare | files and folders of text -> one corpus of dated documents |
| outputs | files of rows that are whole or absent, and the records beside them |
"""
