"""Gangs: pods that start together or not at all.

`gang`, `groups` and `members` say what a gang is and what it lacks; `topology`, `rooms` and `placing` find its places,
`preempt` and `victims` make room, without I/O; `scheduling` carries it out, `timeouts` ends half bound gangs.
"""
