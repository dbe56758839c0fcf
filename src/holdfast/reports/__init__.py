"""What people read: a page is a list of blocks, a chart is data and marks, and three renderers show
the same list.

    format                          counts, times and settings as text (`records.measure` writes figures and intervals)
    blocks, charts                  what a page is made of; the one engine that plotly draws from
    study_page                      the frame of studies' pages, and their charts and tables of figures
    html (with page.css, page.js), terminal, markdown    the three renderers
    compared, methods, measured     paired comparisons, methods, evaluation folders, as every page shows them
    run_figures, run_report, card   one run: what its folder says, page and terminal, model card
    training_charts, along          what was logged, and what was measured, while a model was trained
    sweep_report, sweep_text        a sweep: page, terminal (arms: runs of one's own, as such a study)
    evaluation_report, comparison_report    models side by side; two models question by question
    evaluation_text, comparison_text                what evaluate and compare print
    flips                           the questions whose answers changed
    probe_report                    what changes of its weights cost a checkpoint
    update_report                   an update: what was gained, what was kept
    sequence_report, stages_report  tasks one after another; checkpoints of a run, and whether they have forgotten
    distance_report                 how far one checkpoint lies from another
    displays                        what a notebook shows

Everything is read from plain records; torch is never imported.
"""
