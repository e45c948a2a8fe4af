"""One line in somebody's training script: a recorder that a framework's own hooks drive.

trainer.add_callback(pretune.collector.integrations.transformers.PretuneCallback(store="trials"))
pretune.collector.integrations.deepspeed.record(engine, store="trials", sequence_length=4096)
lightning.Trainer(callbacks=[pretune.collector.integrations.lightning.PretuneCallback(...)])
"""
