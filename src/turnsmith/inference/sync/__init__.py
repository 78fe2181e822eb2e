"""The synchronous API over the async engines: `create_inference_engine` and the classes it returns."""
