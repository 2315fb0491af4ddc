"""`python -m validator`: the same as the console script."""

from validator.boundary import main

if __name__ == "__main__":
    main()
