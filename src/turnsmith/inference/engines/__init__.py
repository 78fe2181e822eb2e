"""The engines: everything that implements `Engine.generate`, one module each, imported only when it is used."""
