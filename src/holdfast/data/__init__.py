"""Training data: from what the user names to what the trainer takes.

| module | what |
|---|---|
| sources | a file, files, a folder or a hub id -> rows; bad input named by file and line; content hashes |
| readers, json_rows, arrow_cache | how local files are read, validated and kept memory-mapped |
| formats, layouts | rows of any known layout -> the columns of TRL's SFTTrainer, every row checked |
| mixing | replay rows among tokenised train rows |
| embedded | the corpus inside every CPython, and a tokenizer for it |
| progress | a bar that only slow work shows |
"""
