"""`rlsys report`: one HTML page about one run or several, which needs no network to be read.

    run_files.py     what a run left on the disk
    charts.py        its metrics as charts
    evaluations.py   anytime curves, bootstrap intervals over problems, comparison of runs
    episodes.py      episodes in one form for the browser of episodes
    document.py      the page: HTML, style, scripts

A figure is a dict in the JSON form of plotly (`{"data": [...], "layout": {...}}`), so only the page
itself needs plotly, for its JavaScript.
"""
