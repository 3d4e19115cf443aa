"""One model, examined: what the use cases share.

A checkpoint goes from a request (`request`) over its files (`reading`), a skeleton of its class (`loading`) and a trace
(`tracing`) to a report (`assembly`); `checkpoint` is that way in one function. A model in memory goes through `live`,
and the checkpoint that it came from through `origin`. `evidence` and `training` gather what the rules look at.
"""
