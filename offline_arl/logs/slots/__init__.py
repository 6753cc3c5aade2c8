"""What an export keeps of a trajectory where the other tool's format has no place for it, and its way back.

A record of an export is one that the other tool reads as it is. Whatever its format has no place for stands under
one key, `offline_arl`, where the format lets a record be extended: a column, `extra`, `info`. This slot holds only
differences between the trajectory and what the adapter of the format makes of the record without it, so it never
repeats a message: texts are named by their place in the record's own, tools by their names. The adapters apply it.
"""
