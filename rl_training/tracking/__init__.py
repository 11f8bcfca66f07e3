"""Records of a training, which make its numbers reproducible and let it resume after a kill.

Trainers use `tracked` (run.py): it locks the folder, writes its manifest or checks that a resumed training is
the same, and gives the last whole checkpoint. The files are described, and read, in
results/store/training.py.
"""
