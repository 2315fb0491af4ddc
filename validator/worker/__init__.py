"""The boundary between the gate and the model's code: what goes in, what may come out, how it is believed.

A worker is a fresh process that runs somebody else's code. Nothing that it says is trusted by itself: a result
counts only with exit status 0 *and* a closing record *and* the nonce *and* every sample exactly once. Nothing
pickled crosses.

    child side    __main__, child
    parent side   launch -> process (the process and its group), intake (messages), log (its words), environment
    both sides    protocol (what is said), frames (how tensors are packed), outcome and spool (what is kept), warm
                  (what a worker gets ready before it has a job)

What may not be changed lightly: `intake` believes nothing before it has checked it, `launch.conclude` is the only
place that makes a `Completed`, and no path out of `launch.start_worker` leaves a process behind. The nonce guards
against mix-ups, not against malice: a model's code can read it in its own process, as it can forge its outputs.

What this boundary alone cannot do: a worker is the same user as the gate. What keeps a hostile model from writing
wherever that user can, to a sibling's spool too, or from leaving its process group, is the sandbox around it.
"""
