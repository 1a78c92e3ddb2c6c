"""`python -m foreword`: the same as the installed command."""

from foreword.cli.main import main

if __name__ == "__main__":
    main()
