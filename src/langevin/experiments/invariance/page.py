from pathlib import Path
def write_page(p): return p
