"""What `probe readout` shows in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.report.format import counted, plain


def readout_lines(result: Mapping[str, Any]) -> list[str]:
    """The lines to print, from one entry of the JSON output's `results`."""
    meta = result["settings"]
    data, evaluation, accuracy = meta["data"], result["evaluation"], result["accuracy"]
    split = f" ({data['split']})" if data["split"] else ""
    lines = [
        result["resolved"],
        f"readout    {meta['features']}, {result['features']} per image, {meta['classes']} classes",
        f"fitted to  {counted(data['images'], 'image')} of {data['name']}{split}",
        f"C          {meta['c']:g}, the best of {len(meta['candidates'])}",
        f"held out   {meta['held_out_accuracy']:.3f}  "
        f"({meta['held_out_correct']} of {meta['held_out']} training images)",
        f"training   {meta['training_accuracy']:.3f}  "
        f"({meta['training_correct']} of {data['images']})",
    ]
    if evaluation is not None:
        lines.append(
            f"{evaluation['split']:<10} {accuracy['value']:.3f}  ({evaluation['correct']} of "
            f"{evaluation['images']}; 95 % interval {accuracy['low']:.3f} to "
            f"{accuracy['high']:.3f}, Wilson)"
        )
        if evaluation["classes"] < meta["classes"]:
            lines.append(
                f"note: the images of {evaluation['split']} hold {evaluation['classes']} of the "
                f"{meta['classes']} classes; another --eval-limit may reach all"
            )
    lines += [f"note: {note}" for note in (*meta["notes"], *result["notes"])]
    return [plain(line) for line in [*lines, f"Written to {result['file']}"]]
