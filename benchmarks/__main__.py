"""`python -m benchmarks` runs every benchmark."""

from __future__ import annotations

from benchmarks import battery, report, ssdc, train

if __name__ == "__main__":
    ssdc.main()
    battery.main()
    report.main()
    train.main()
