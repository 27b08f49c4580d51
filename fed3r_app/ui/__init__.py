"""A local web page that shows runs, live ones too, and classifies pictures.

Reads a folder of runs and changes nothing in it; asks no other machine and sends
nothing anywhere. May ask ``runs`` and what lies below; knows no Flower, so that it
shows simulations and deployments alike.
"""
