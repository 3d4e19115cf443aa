"""Mistakes that a type checker finds: each line says the code of the error that it must be, and a word of its message.

This file is never imported.
"""

from __future__ import annotations

from torch import nn

import headscope

CHECKPOINT = "roberta-base"
MODULE = nn.Linear(2, 2)

headscope.inspekt(CHECKPOINT)  # E: attr-defined inspekt
headscope.Examinatoin  # E: attr-defined Examinatoin
headscope.error.HeadscopeError  # E: attr-defined error
headscope.inspect(CHECKPOINT, lables="a,b")  # E: call-overload inspect
headscope.inspect(CHECKPOINT, num_labels="three")  # E: call-overload inspect
headscope.inspect(CHECKPOINT, example_inputs=1)  # E: call-overload inspect
headscope.inspect(MODULE, num_labels=3)  # E: call-overload inspect
headscope.inspect(None)  # E: call-overload inspect
headscope.inspect()  # E: call-overload inspect
headscope.inspect(CHECKPOINT).heads  # E: attr-defined heads
headscope.inspect(CHECKPOINT).head.formula  # E: union-attr formula
headscope.check(CHECKPOINT, "infer")  # E: call-overload check
headscope.check(CHECKPOINT, fail_on="fatal")  # E: call-overload check
headscope.check(CHECKPOINT, optimizer=None, num_labels=3)  # E: call-overload check
headscope.check(MODULE, "training", revision="main")  # E: call-overload check
headscope.check(MODULE, data="rows.csv", predict=8)  # E: call-overload check
headscope.check(CHECKPOINT, label_colum="label")  # E: call-overload check
headscope.check(CHECKPOINT).verdikt  # E: attr-defined verdikt
headscope.inspect(CHECKPOINT).to_pandas("weights")  # E: arg-type to_pandas
headscope.check(CHECKPOINT).to_pandas("parameters")  # E: call-arg to_pandas
headscope.diff_weights(MODULE, num_labels=3)  # E: call-overload diff_weights
headscope.diff_weights(CHECKPOINT, offlien=True)  # E: call-overload diff_weights
headscope.compare(CHECKPOINT, CHECKPOINT, value=True)  # E: call-arg value
headscope.forward(CHECKPOINT, device="gpu")  # E: call-overload forward
headscope.forward(CHECKPOINT, texts="a")  # E: call-overload forward
headscope.snapshot(CHECKPOINT)  # E: call-arg output
headscope.snapshot(CHECKPOINT, "out.json", num_labels=3)  # E: call-arg num_labels
headscope.probe(CHECKPOINT, data="rows.csv", text_column="text")  # E: call-arg label_column
headscope.heads(pooling=3)  # E: arg-type pooling
headscope.heads(patern="bert")  # E: call-arg patern
headscope.diagram(headscope.inspect(CHECKPOINT), "png")  # E: call-overload diagram
headscope.verify_served(CHECKPOINT, "http://localhost", texts="a")  # E: call-arg texts
headscope.verify_served(CHECKPOINT, "http://localhost", server_timeout="9")  # E: arg-type server_timeout
headscope.verify_card("card.json", score="scores.json")  # E: call-arg score
headscope.write_card(CHECKPOINT)  # E: call-arg output
headscope.explain(102)  # E: arg-type explain
headscope.HeadscopeCallback(on_fail="stop")  # E: arg-type on_fail
headscope.Ignore("HS101", untill=None)  # E: call-arg untill
