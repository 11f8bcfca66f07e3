"""`python -m kernelwright`."""

from kernelwright.cli import main

if __name__ == "__main__":
    main()
