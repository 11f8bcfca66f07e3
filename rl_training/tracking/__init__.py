"""What is kept of a training, so that its numbers can be believed and it can go on after a kill.

`tracked` (run.py) is what trainers use: it holds the folder, writes its manifest or checks that what goes on
is what began, and gives the last whole checkpoint. The files are described, and read, in
results/store/training.py.
"""
