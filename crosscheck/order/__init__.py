"""In which order a candidate's reduction adds, found from its results: `crosscheck order`.

reveal.py rebuilds a tree from masks (masks.py, tree.py) and checks.py tries it on others; survey.py does so for many
settings, in the processes of run.py; shapes.py, drawing.py, words.py and report.py say what was found.
"""
