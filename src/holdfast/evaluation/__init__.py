"""Measuring what a model knows, before and after: benchmarks, held-out text, what it says at the answer position,
programs, a judge; and two models side by side.

    entries, suite, shipped     what to measure: values, the `evaluation:` section, suites by name
    session                     several models into one folder (`holdfast evaluate`)
    runner                      one model on a plan, computing nothing twice
    measures                    one function a kind of entry:
      harness, tasks, harness_model, data_forms, sentences    lm-evaluation-harness on the hub's data or on local files
      shared_prefix             log-likelihoods with every shared prefix computed once
      perplexity, documents     text of any length, exactly; memorisation
      answers, classes          the answer position; classes by likelihood
      programs, code_scores, sandbox                          HumanEval and MBPP; programs run behind walls
    partial                     what was found so far, so that an interruption costs little
    estimates, averages         from per-sample rows to figures with intervals
    compare, compare_folders, gate, continual                 two models, paired; rules; many stages
    joint_scores                several models on the same questions, drawn together
    judge, verdict, win_rate, answers_store                   pairwise win rates by a language model
"""
