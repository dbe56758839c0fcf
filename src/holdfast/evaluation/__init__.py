"""What a model knows, measured before and after: benchmarks, held-out text, the answer position,
programs, a judge; and two models side by side.

    entries                     what all entries have in common; averages; the plan
    kinds/                      one file a kind of entry: settings, what is asked, figures
    suite, shipped              the `evaluation:` section, suites by name
    request, loading            `holdfast evaluate`: what is asked
    session, worker, output     several models into one folder, what is in it
    runner                      one model on a plan, computing nothing twice
    measures                    an entry and a `Subject` in, an `Outcome` out
    text/   shared_prefix       log-likelihoods with every shared prefix computed once
            perplexity, documents                           text of any length, exactly
            answer_position, options, questions             options by their likelihood
            replies, checkers, sentences                    replies whose instructions a program checks
    tasks/  harness, tasks, harness_model, data_forms       lm-evaluation-harness on the hub's data or on local files
    code/   code_scores, sandbox                            programs run behind walls
    judge/  judge, verdict, answers                         pairwise win rates by a language model
    images                      questions with images: read, put through the processor, asked
    partial                     results so far, so that an interruption costs little
    averages                    means of several figures
    compare/  samples           two models, paired: one sheet of columns, differences, tests
              folders, joint_scores                           which entries can be compared; several models, joint draws
              gate, continual   rules; many stages
              request, result   `holdfast compare`
    foreign/  registry, log     logs of other tools as evaluations, one reader a file

Figures with intervals come from `holdfast.statistics`.
"""
