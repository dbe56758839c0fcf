"""Generated faults in what comes in: requests, data files, weights, folders, caches, the machine, and kills.

(The faults of `checks/faults/seeded.py` are another thing: they are put into holdfast's own code, to see which of them
its tests notice.)

    make faults                                   2,000 cases and 40 kills, at most 20 minutes of two cores
    python -m fuzz --cases 300 --only rows        one kind
    python -m fuzz --case rows:17                 a single case again, in a folder that stays (PYTHONPATH: see Makefile)

A case is one command over one thing that is wrong, or strange and right. It is made from (seed, kind, number) alone, so
it can be made again. Its generator knows whether what it made is valid; what comes of it:

    refused      exit code 2 and a message that names the file or the key
    accepted     exit code 0 for what is valid, or may be; where the result is known, it is that result
    raw          a bare exception of Python, or a traceback
    nameless     refused without naming file or key
    code         an error in words with another exit code than was due
    silent       nonsense accepted, or another result without a word
    strict       what is valid refused
    hang         not ended within its limit
    died         ended by a signal

The first two are good. What is known and not mended yet stands in `known.yaml` with its reason.
"""
