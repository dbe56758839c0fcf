"""Passages of a corpus that a model already knows, ranked by its perplexity
(`holdfast data select`).

| module | what |
|---|---|
| request | which passages are wanted |
| passages | documents cut into passages that wait on disk, a few numbers of each in memory |
| overlap | passages that hold a question of a benchmark |
| scores | perplexities by batches, kept in a ledger |
| choosing | the lowest up to a budget, a disjoint random sample, and what is said of both |
| card | the data card |
| run | one request |

What computes perplexities comes from above (`scores.Scorer`): nothing here knows a model.
"""
