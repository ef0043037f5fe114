"""The local page of ``hespas app``.

In go requests of a browser on this machine, out come JSON and the files of the page. `server`
answers them, `guard` refuses those of others, `pool` hands questions to warm processes (`worker`),
`state` turns the page's state into options and commands, `view` figures into drawings,
`network` systems into pictures, and `searches` runs studies.
"""
