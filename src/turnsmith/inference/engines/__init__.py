"""The engines: implementations of `Engine.generate`, one module each, imported only when used."""
