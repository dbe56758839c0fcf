"""What a model knows, measured before and after: benchmarks, held-out text, the answer position, programs, a judge; and
two models side by side.

    entries, suite, shipped     what to measure: values, the `evaluation:` section, suites by name
    request, session, output    `holdfast evaluate`: what is asked, several models into one folder, what is in it
    runner                      one model on a plan, computing nothing twice
    measures                    an entry and a `Subject` in, an `Outcome` out; one module a kind of entry:
      tasks/  harness, tasks, harness_model, data_forms       lm-evaluation-harness on the hub's data or on local files
      text/   shared_prefix     log-likelihoods with every shared prefix computed once
              perplexity, documents                           text of any length, exactly; memorisation
              answers           the distribution at the answer position
              options, classes, choices                       options by their likelihood
              instructions, checkers, sentences               replies whose instructions a program checks
      code/   programs, code_scores, sandbox                  HumanEval and MBPP; programs run behind walls
      own_entry                 a class of the user's own
    images                      questions with images: read, put through the processor, asked
    partial                     results so far, so that an interruption costs little
    averages                    means of several figures
    compare/  samples           two models, paired: one sheet of columns, differences, tests
              folders, joint_scores                           which entries can be compared; several models, joint draws
              gate, continual   rules; many stages
              request, result   `holdfast compare`
    judge/  judge, verdict, answers, measured                 pairwise win rates by a language model

Figures with intervals come from `holdfast.statistics`.
"""
