# %% [markdown]
# A group of jobs from a notebook: `isonomy.submit`, a bar, the trials, the best model.
#
# Run it cell by cell (VS Code, Jupyter with jupytext), or whole: python -m submarine_patch.examples.sweep
# HADOOP_CONF_DIR names the cluster.

# %%
import isonomy

app = isonomy.submit(
    "python -m submarine_patch.examples.digits_keras --checkpoint-steps 10 %hyperparameters%",
    name="sweep",
    queue="research",
    framework="keras",
    memory="1G",
    gpus=1,
    app_scheduler="asha",
    search_space={
        "learning-rate": {"type": "float", "min": 0.003, "max": 0.3, "log": True},
        "batch-size": {"type": "choice", "values": [32, 64]},
    },
    jobs=4,
    eta=2,
    max_iterations=40,
    min_iterations=20,
    iteration_s=0.2,
    saved_model_path="/models/sweep",
)
print(app)

# %%
ended = app.wait(progress=True)
print(ended.state, ended.line())

# %%
print(app.trials())

# %%
print(app.best())
