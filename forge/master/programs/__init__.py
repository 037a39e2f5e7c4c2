"""Jobs that run in programs of any language, not in workers.

`programs.py` is all of them, as the loop sees it. `pools.py` has programs that stay and are given one job at a time, in
the words of `pool_protocol.py`; `commands.py` has one process for each job. `process_table.py` starts programs, through
the zygote, and reads what they write. `places.py` counts which places of their queues their jobs take.
"""
