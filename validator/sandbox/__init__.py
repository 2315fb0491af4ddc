"""What holds a process that runs somebody else's code: what it may see and do, put around it, and proven.

    level         strict, standard, none: names for what was proven
    confinement   what one process may see and do; crosses to it as JSON
    machine       what this machine has: bubblewrap, Landlock, libseccomp, GPU device nodes
    paths         what an interpreter reads that is not a model
    bubblewrap    from outside: a file system, network and process namespace of its own
    limits, landlock, seccomp
                  from inside, before anything foreign is imported; `enter` puts them on, in this order
    canary        the child of the self-test, confined like a worker, that tries to get out
    selftest      starts it and looks at what came of it
    choice        the strongest level that was proven, against what was asked for

Nothing here imports torch, MLflow or the rest of the gate: the canary starts in a tenth of a second.
"""
