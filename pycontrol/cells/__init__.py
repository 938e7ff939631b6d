"""HiveD's virtual private clusters: cells, buddy allocation, priorities, preemption, bad hardware, exchange.

Pure and in memory: no I/O, no clock, no log. How it is driven:

    cells = Cells(layout(parse(text, CellsFile, "cells.yaml"), topology))   # config, core
    machines(cells, vc)                  # machines: the VC's private cluster, with what is free and where it is bound
    cells.request(Request(group, vc, priority, members, on=((host, gpus), ...)))
        # one gang; `on` binds it to the hosts that a policy chose; priority -1: opportunistic
        # PLACED workers | PREEMPT victims (end them after their grace, release each) | WAIT reason
    cells.release(group).ready           # preemptors whose victims are gone: request them again, they are placed
    cells.set_health(host, healthy, gpus)    # returns the groups that are hit; end them or let them run
    dump(cells), load(layout, data)      # recovery: the whole state as JSON values
    adopt(cells, request, workers)       # recovery: a group that already runs there
    reconfigured(cells, new_layout)      # recovery: another configuration, running groups kept
"""
